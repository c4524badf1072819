"""Python reprs in log lines: start-up arguments, `kv_transfer_params`, failure contexts.

Lines may be cut, and the text in them is a stranger's: single fields are picked out, nothing is evaluated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from kvdiag.events import Role  # noqa: TC001 - part of a dataclass

_READ_KEYS: Final = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_num_tokens")
_ROLES: Final[dict[str, Role]] = {"kv_producer": "prefill", "kv_consumer": "decode"}


@cache
def _field(name: str) -> re.Pattern[str]:
    # The name first, then that a word begins with it: literals at the front are what the search is fast at.
    return re.compile(rf"{name}(?<!\w{name})['\"]?\s*[:=]\s*(?:'([^']*)'|\"([^\"]*)\"|([\w.+-]+|\[))")


def pick(text: str, name: str) -> str | None:
    """Return the value of `name` in a dict or keyword repr as text; None where it is missing or None."""
    match = _field(name).search(text)
    if match is None:
        return None
    value = next((group for group in match.groups() if group is not None), "")
    return None if value in {"None", "null"} else value


def pick_int(text: str, name: str) -> int | None:
    """Return the value of `name` as a number, None where it is none."""
    value = pick(text, name)
    return int(value) if value is not None and value.isdecimal() and len(value) < 16 else None


def pick_bool(text: str, name: str) -> bool | None:
    """Return the value of `name` as a truth value, None where it is missing."""
    value = pick(text, name)
    return None if value is None else value.lower() == "true"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine's start-up arguments say about KV transfer."""

    connector: str | None
    engine_id: str | None
    role: Role | None
    bidirectional: bool
    ttl_s: int | None
    threshold: int | None
    failure_policy: str | None
    port: int | None = None

    def same_engine(self, other: EngineConfig) -> bool:
        """Tell whether another start can be one of the same engine: it plays the same role on the same port."""
        roles = {self.role, other.role} - {None}
        ports = {self.port, other.port} - {None}
        return len(roles) < 2 and len(ports) < 2


def read_config(arguments: str) -> EngineConfig:
    """Return the KV transfer part of `non-default args: {..}`."""
    return EngineConfig(
        connector=pick(arguments, "kv_connector"),
        engine_id=pick(arguments, "engine_id"),
        role=_ROLES.get(pick(arguments, "kv_role") or ""),
        bidirectional=pick_bool(arguments, "bidirectional_kv_xfer") is True,
        ttl_s=pick_int(arguments, "decoder_kv_blocks_ttl"),
        threshold=pick_int(arguments, "kv_recompute_threshold"),
        failure_policy=pick(arguments, "kv_load_failure_policy"),
        port=pick_int(arguments, "port"),
    )


@dataclass(frozen=True, slots=True)
class TransferParams:
    """What a request's `kv_transfer_params` ask for. `handle` is the request that holds the blocks."""

    role: Role | None
    handle: str | None
    state: Literal["none", "usable", "incomplete"]
    """Whether prefill was given something to read back."""
    missing: tuple[str, ...] = ()
    remote_tokens: int | None = None


def read_params(text: str) -> TransferParams:
    """Return the meaning of a `kv_transfer_params` repr."""
    role: Role | None = None
    if pick_bool(text, "do_remote_decode"):
        role = "prefill"
    elif pick_bool(text, "do_remote_prefill"):
        role = "decode"
    handle = pick(text, "remote_request_id")
    if role != "prefill" or pick(text, "remote_block_ids") is None:
        return TransferParams(role, handle, "none")
    # A line that was cut says nothing about what came after the cut.
    whole = text.rstrip().endswith(("}", ")", ".", "'"))
    missing = tuple(key for key in _READ_KEYS if pick(text, key) is None) if whole else ()
    return TransferParams(
        role, handle, "incomplete" if missing else "usable", missing, pick_int(text, "remote_num_tokens")
    )
