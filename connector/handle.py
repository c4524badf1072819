"""Reading `kv_transfer_params`, which come from routers and, through them, from strangers.

Everything here is total: any value at all gives a handle or the reason why there is none, never an exception.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from kvdiag import context

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_BLOCKS: Final = 1 << 20
MAX_TOKENS: Final = 1 << 31
MAX_TEXT: Final = 512
_SIZES: Final = ("tp_size", "dcp_size", "pp_size")
INTERNAL_KEYS: Final = ("_remote_blocks_processed", "_p_side_truncated")
"""Upstream's own marks in the same dict: a stranger who sets one makes it claim tokens that it never reads."""


@dataclass(frozen=True, slots=True)
class Handle:
    """What the other engine holds for one finished request."""

    engine_id: str
    request_id: str
    tokens: int
    blocks: tuple[tuple[int, ...], ...]
    """Block ids by KV cache group."""
    context: context.HandleContext | None
    """None for an engine that runs the stock connector."""


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why a handle cannot be used."""

    reason: str
    releasable: bool = False
    """It names the holder well enough to tell it that its blocks can go."""


def read_back(params: dict[str, Any]) -> Handle | Flaw | None:
    """Return decode's handle from a prefill request; None where the request brings none."""
    if not params.get("remote_block_ids"):
        return None
    flaw = _flaw(params)
    if flaw is not None:
        return Flaw(flaw)
    tokens = params.get("remote_num_tokens")
    if not _is_count(tokens, MAX_TOKENS):
        return Flaw("remote_num_tokens", releasable=not tokens)
    return _handle(params, tokens)


def hand_off(params: dict[str, Any]) -> Handle | Flaw:
    """Return prefill's handle from a decode request."""
    flaw = _flaw(params)
    if flaw is not None:
        return Flaw(flaw)
    tokens = params.get("remote_num_tokens")
    if tokens is not None and not _is_count(tokens, MAX_TOKENS):
        return Flaw("remote_num_tokens")
    return _handle(params, tokens or 0)


def _handle(params: dict[str, Any], tokens: int) -> Handle:
    blocks = tuple(tuple(group) for group in params["remote_block_ids"])
    return Handle(
        engine_id=params["remote_engine_id"],
        request_id=params["remote_request_id"],
        tokens=tokens,
        blocks=blocks,
        context=context.parse(context.HandleContext, params),
    )


def _flaw(params: dict[str, Any]) -> str | None:
    """Return the name of the first field that upstream could not work with."""
    for key in ("remote_engine_id", "remote_request_id", "remote_host"):
        if not _is_text(params.get(key)):
            return key
    if not _is_count(params.get("remote_port"), 65535):
        return "remote_port"
    if not _are_blocks(params.get("remote_block_ids")):
        return "remote_block_ids"
    for key in _SIZES:
        if key in params and not _is_count(params[key], 4096):
            return key
    return None if _is_time(params.get("remote_blocks_expiry_time")) else "remote_blocks_expiry_time"


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_TEXT


def _is_count(value: object, limit: int) -> TypeGuard[int]:
    return type(value) is int and 0 < value <= limit


def _is_time(value: object) -> bool:
    return value is None or (type(value) in (int, float) and math.isfinite(value))  # type: ignore[arg-type]


def _are_blocks(groups: object) -> bool:
    """Return whether this is a non-empty list of lists of block ids with at least one id."""
    if not isinstance(groups, list | tuple) or not 0 < len(groups) <= 64:
        return False
    if not all(isinstance(group, list | tuple) for group in groups):
        return False
    total = sum(len(group) for group in groups)
    return 0 < total <= MAX_BLOCKS and all(_are_ids(group) for group in groups)


def _are_ids(group: Sequence[object]) -> bool:
    return all(type(block) is int and 0 <= block < MAX_TOKENS for block in group)
