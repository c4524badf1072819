"""What prefill may read back from decode for one prompt: decided before any token is claimed.

Upstream claims by counting tokens, and a claim that cannot be kept costs the whole request. So whatever is known to
fail, or would bring the KV of other tokens, is not offered to upstream in the first place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from kvdiag.connector.digest import Agreement, PrefixDigest
    from kvdiag.connector.handle import Handle

SAFETY_MARGIN_S: Final = 6.0
"""Upstream's worker declines a read (and fails the request) when less than 5 s are left; refuse a little earlier."""

Offer = Literal["as_is", "cut", "release", "withhold"]
"""What upstream gets to see: the handle as it came, a shorter one, one to release only, or none."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The KV cache of this engine, as far as reading a part of a sequence goes."""

    block_size: int
    divisible: bool
    """Any whole number of leading blocks is the KV of a prefix: one group of full attention, no context parallelism."""
    block_bytes: int
    """Memory of one block, over all ranks."""
    blocks: int
    """How many the cache has."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to offer, and why less than all."""

    offer: Offer
    tokens: int
    """Offered from the start of the prompt."""
    cause: str | None = None
    detail: str | None = None
    position: int | None = None
    """Up to where the prompt is proven to be the same."""


def refuse(cause: str, detail: str | None = None) -> Plan:
    """Return the plan that does not even tell the holder."""
    return Plan("withhold", 0, cause, detail)


def expired(age_s: float | None, ttl_s: float | None) -> bool:
    """Return whether decode has let the blocks go, or is about to."""
    return age_s is not None and ttl_s is not None and age_s + SAFETY_MARGIN_S >= ttl_s


def plan_read(
    handle: Handle, prompt: int, digest: PrefixDigest | None, agreed: Agreement | None, layout: Layout
) -> Plan:
    """Return how much of what decode holds may be read for a prompt of so many tokens.

    `agreed` is None where nothing can be compared: then upstream's counting stands, except for a prompt shorter than
    what is held, for which it would pair the wrong blocks.
    """
    if digest is None or agreed is None:
        return _plan_unverified(handle, prompt, layout)
    if agreed.tokens == digest.total == handle.tokens:
        return _as_is(handle, digest.block, layout)
    detail = "in_history" if agreed.tokens < digest.prompt else "in_response"
    cause, detail_or_none = ("prefix_diverged", detail) if agreed.parted else (None, None)
    readable = _whole_blocks(agreed.tokens, digest.block, layout)
    if readable <= 0:
        return Plan("release", 0, cause, detail_or_none, agreed.tokens)
    if not _covers(handle, readable, digest.block):
        return Plan("withhold", 0, "missing_metadata", "incomplete")
    return Plan("cut", readable, cause, detail_or_none, agreed.tokens)


def cut_blocks(handle: Handle, tokens: int, block: int) -> list[list[int]]:
    """Return the ids of the leading blocks that hold so many tokens, by group."""
    count = math.ceil(tokens / block)
    return [group[:count] for group in handle.blocks]


def _plan_unverified(handle: Handle, prompt: int, layout: Layout) -> Plan:
    if prompt < handle.tokens:
        return Plan("release", 0, "prefix_diverged", "in_history")
    return _as_is(handle, layout.block_size, layout)


def _as_is(handle: Handle, block: int, layout: Layout) -> Plan:
    if layout.divisible and not _covers(handle, handle.tokens, block):
        return refuse("missing_metadata", "incomplete")
    return Plan("as_is", handle.tokens, position=handle.tokens)


def _whole_blocks(tokens: int, block: int, layout: Layout) -> int:
    """Return the tokens that whole blocks of both engines cover; 0 where a part of a sequence cannot be read."""
    if not layout.divisible:
        return 0
    unit = math.lcm(block, layout.block_size)
    return tokens // unit * unit


def _covers(handle: Handle, tokens: int, block: int) -> bool:
    return all(len(group) * block >= tokens for group in handle.blocks)
