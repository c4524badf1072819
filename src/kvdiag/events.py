"""The two record schemas that everything else reads and writes.

`TurnRecord` is one line of the router's turn log (`kvdiag.turn/1`), `KvEvent` one line of the
connector's event log (`kvdiag.kv/1`). Readers accept unknown fields and older minor versions.
"""

from __future__ import annotations

import datetime
from typing import Final, Literal

import msgspec

from kvdiag.causes import Direction  # noqa: TC001 - msgspec resolves annotations at run time

TURN_SCHEMA: Final = "kvdiag.turn/1"
KV_SCHEMA: Final = "kvdiag.kv/1"
REPORT_SCHEMA: Final = "kvdiag.report/1"

Role = Literal["prefill", "decode"]
EventKind = Literal["match", "transfer", "retain", "release", "decline", "failure"]
Release = Literal["read", "expired", "notified"]
"""How the holding of blocks for the other engine ended; notified: it needed no read and said so."""
PROBE: Final = "kvdiag-probe-"
"""How the ids of `kvdiag doctor`'s requests and conversations begin."""
TurnBucket = Literal["1", "2-4", "5-9", "10+"]
TURN_BUCKETS: Final[tuple[TurnBucket, ...]] = ("1", "2-4", "5-9", "10+")
PromptBucket = Literal["<1k", "1k-4k", "4k-16k", "16k-64k", "64k+"]
PROMPT_BUCKETS: Final[tuple[PromptBucket, ...]] = ("<1k", "1k-4k", "4k-16k", "16k-64k", "64k+")


def utc_now() -> str:
    """Return the time as RFC 3339, UTC, with milliseconds."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def turn_bucket(turn: int) -> TurnBucket:
    """Return the bounded label value for a turn number (from 1)."""
    if turn <= 1:
        return "1"
    if turn <= 4:
        return "2-4"
    return "5-9" if turn <= 9 else "10+"


def prompt_bucket(tokens: int) -> PromptBucket:
    """Return the bounded label value for a prompt length in tokens (k = 1024)."""
    for bucket, limit in zip(PROMPT_BUCKETS, (1024, 4096, 16384, 65536), strict=False):
        if tokens < limit:
            return bucket
    return "64k+"


class TurnRecord(msgspec.Struct, kw_only=True, tag_field="schema", tag=TURN_SCHEMA):
    """One request of a conversation, as the router saw it. Times are seconds, tokens are counts."""

    ts: str
    """When the turn ended."""
    request_id: str
    conversation: str | None
    """Keyed hash; a new one for each request where nothing links it to earlier ones."""
    turn: int
    model: str | None = None
    stream: bool = False
    prefill: str | None = None
    decode: str | None = None
    lookup: str | None = None
    """Why there was or was not a handle: "hit" or a cause's detail."""
    handle_age_s: float | None = None
    gap_s: float | None = None
    """Since the previous turn of this conversation ended."""
    prompt_tokens: int | None = None
    local_tokens: int | None = None
    remote_tokens: int | None = None
    computed_tokens: int | None = None
    lost_tokens: int | None = None
    """Held on decode, recomputed all the same."""
    router_s: float | None = None
    """In the router itself, until the first byte of the answer (all of it, where that was not streamed) went out."""
    queue_s: float | None = None
    """Part of `prefill_s`: until prefill's scheduler admitted the request."""
    read_s: float | None = None
    """Part of `prefill_s`: from claiming decode's tokens until they had arrived."""
    prefill_s: float | None = None
    ttft_s: float | None = None
    total_s: float | None = None
    retries: int = 0
    status: int
    cause: str | None = None
    detail: str | None = None


class KvEvent(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="schema", tag=KV_SCHEMA):
    """One observed fact about a request's KV blocks, from the connector."""

    ts: str
    request_id: str
    """The engine's own id, with the suffix that it appended."""
    role: Role
    engine_id: str
    kind: EventKind
    direction: Direction | None = None
    bytes: int | None = None
    seconds: float | None = None
    post_seconds: float | None = None
    descriptors: int | None = None
    tokens: int | None = None
    blocks: int | None = None
    cause: str | None = None
    detail: str | None = None
    conversation: str | None = None
    turn: int | None = None
    remote_request_id: str | None = None
    peer: str | None = None
    """The other engine: its engine id, or host:port of its side channel where the connector is told to name that."""
    local_tokens: int | None = None
    prompt_tokens: int | None = None
    lost_tokens: int | None = None
    """Held by the other engine, computed all the same; each lost token is reported once, with the cause that lost it."""
    position: int | None = None
    """Up to where the prompt was proven to equal the tokens that decode holds."""
    queue_s: float | None = None
    """From the request's arrival in the engine until the scheduler admitted it."""
    wait_s: float | None = None
    """From claiming the remote tokens until they had arrived."""
    handshake_s: float | None = None
    """One-off set-up with a new peer that this request waited for."""
    release: Release | None = None
