"""Reading `kv_transfer_params`, which come from routers and, through them, from strangers.

Everything here is total: any value at all gives a handle or the reason why there is none, never an exception.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeGuard

import msgspec
from msgspec import Meta

from kvdiag import context

MAX_BLOCKS: Final = 1 << 20
INTERNAL_KEYS: Final = ("_remote_blocks_processed", "_p_side_truncated")
"""Upstream's own marks in the same dict: a stranger who sets one makes it claim tokens that it never reads."""

_Text = Annotated[str, Meta(min_length=1, max_length=512)]
_Size = Annotated[int, Meta(ge=1, le=4096)]
_Groups = Annotated[list[Any], Meta(min_length=1, max_length=64)]


class _Fields(msgspec.Struct):
    """The fields that upstream reads without looking at them, in the types that it can work with."""

    remote_engine_id: _Text
    remote_request_id: _Text
    remote_host: _Text
    remote_port: Annotated[int, Meta(ge=1, le=65535)]
    remote_block_ids: _Groups
    remote_blocks_expiry_time: float | None = None
    tp_size: _Size = 1
    dcp_size: _Size = 1
    pp_size: _Size = 1


@dataclass(frozen=True, slots=True)
class Handle:
    """What the other engine holds for one finished request."""

    engine_id: str
    request_id: str
    tokens: int
    blocks: list[list[int]]
    """Block ids by KV cache group."""
    address: str
    """Host and port of the holder's side channel."""
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
    fields = _fields(params)
    if isinstance(fields, Flaw):
        return fields
    tokens = params.get("remote_num_tokens")
    if not _is_count(tokens):
        return Flaw("remote_num_tokens", releasable=not tokens)
    return _handle(fields, tokens, params)


def hand_off(params: dict[str, Any]) -> Handle | Flaw:
    """Return prefill's handle from a decode request."""
    fields = _fields(params)
    if isinstance(fields, Flaw):
        return fields
    tokens = params.get("remote_num_tokens")
    if tokens is not None and not _is_count(tokens):
        return Flaw("remote_num_tokens")
    return _handle(fields, tokens or 0, params)


def _handle(fields: _Fields, tokens: int, params: dict[str, Any]) -> Handle:
    told = context.parse(context.HandleContext, params)
    return Handle(
        engine_id=fields.remote_engine_id,
        request_id=fields.remote_request_id,
        tokens=tokens,
        blocks=fields.remote_block_ids,
        address=f"{fields.remote_host}:{fields.remote_port}",
        context=told,
    )


def _fields(params: dict[str, Any]) -> _Fields | Flaw:
    try:
        fields = msgspec.convert(params, _Fields)
    except msgspec.ValidationError as error:
        return Flaw(str(error))
    if not any(fields.remote_block_ids):
        return Flaw("no block in remote_block_ids")
    if not all(map(_are_blocks, fields.remote_block_ids)):
        return Flaw("remote_block_ids are not lists of block ids")
    expiry = fields.remote_blocks_expiry_time
    return fields if expiry is None or math.isfinite(expiry) else Flaw("remote_blocks_expiry_time is not finite")


def _are_blocks(group: object) -> bool:
    """Return whether this is a list of block ids. The array checks them in C: a long prompt has thousands."""
    if not isinstance(group, list) or len(group) > MAX_BLOCKS:
        return False
    if group and type(group[0]) is not int:  # numpy would read booleans alone as a mask
        return False
    try:
        array("I", group)
    except (TypeError, OverflowError):
        return False
    return True


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 < value < 1 << 31
