"""What a scenario is: what is done to which engines, and what every careful reader of its logs must conclude."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.faults.rig import Rig

EVERY_FAULT: Final = ("*",)


@dataclass(frozen=True)
class Evidence:
    """A line that proves the verdict: the first one in `file` that matches, or every one."""

    file: str
    pattern: str
    role: str
    every: bool = False


@dataclass(frozen=True)
class Expected:
    """The conclusion that the logs allow, written from what was done."""

    cause: str
    detail: str | None = None
    turns: int | None = None
    acceptable: tuple[str, ...] = ()
    must_not: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    why: str = ""
    also_wrong: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scenario:
    """One row of the matrix."""

    name: str
    what: str
    """What was done, in one sentence."""
    drive: Callable[[Rig], None]
    expected: Expected
    """From all logs: engines, connectors' events, routers and their turn logs."""
    stock: Expected | None = None
    """From the engines' logs alone; None where they cannot show it."""
    engines: tuple[str, str] = ("prefill", "decode")
    """Names of the prefill and decode configurations."""
    router: tuple[str, ...] = ()
    errors: int = 0
    """Requests whose client must expect an error."""
    wrong_text: bool = False
    """Whether answers may differ from an honest prefill's: what stock vLLM does, and the reason for verifying."""
    network: bool = False
    """Needs a network namespace of its own."""
    cases: tuple[str, ...] = ("all",)
    """Which views are kept as incident cases: "all", "stock"."""


HEALTHY: Final = Expected("healthy", must_not=EVERY_FAULT)
