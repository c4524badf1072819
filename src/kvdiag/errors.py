"""Errors that end a command, and the exit code that each maps to."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every verb. A crash must never look like a finding, so 1 is kept for findings."""

    CLEAR = 0
    FINDINGS = 1
    UNUSABLE = 2
    INCONCLUSIVE = 3
    UNAVAILABLE = 4
    INTERNAL = 70
    INTERRUPTED = 130


class KvdiagError(Exception):
    """What a user can mend. The message is one line: the input, what is wrong with it, the remedy."""

    exit_code = ExitCode.UNUSABLE


class InputError(KvdiagError):
    """A file, option or configuration value cannot be used."""


class MissingExtraError(KvdiagError):
    """A verb needs packages that this installation does not have."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs packages that are not installed; in a clone of kvdiag run: pip install '.[{extra}]'"
        )


class MissingStackError(KvdiagError):
    """The real stack on CPU is not installed; no extra brings it all (CPU build of torch, NIXL's loader, Prometheus)."""

    def __init__(self) -> None:
        super().__init__(
            "the local stack needs vLLM's CPU build, NIXL and Prometheus; "
            "in a clone of kvdiag run: make setup && .venv/bin/kvdiag demo"
        )


class UnavailableError(KvdiagError):
    """A service (engine, router, Prometheus) that the command needs did not answer."""

    exit_code = ExitCode.UNAVAILABLE
