"""The handle ledger: issued by decode, claimed by exactly one turn, void when stale or when its engine is gone."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from kvdiag.context import KEY, HandleContext, TurnContext, parse

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from kvdiag.router.identity import Identity
    from kvdiag.router.replies import Reply
    from kvdiag.router.stores import Entry, Store

_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encoder: Final = msgspec.json.Encoder()
_TRUE: Final = msgspec.Raw(b"true")
_FALSE: Final = msgspec.Raw(b"false")
_BLOCK: Final = re.compile(rb"\d")
FIRST: Final = b'{"do_remote_decode":true,"do_remote_prefill":false'
"""Prefill's params without a handle, unclosed."""


class _HandleFields(msgspec.Struct):
    """What prefill needs for a read-back; with one of them missing vLLM silently recomputes."""

    remote_engine_id: str
    remote_request_id: str
    remote_host: str
    remote_port: int
    remote_block_ids: msgspec.Raw
    remote_num_tokens: int = 0
    do_remote_decode: bool = False
    do_remote_prefill: bool = True


_handle: Final = msgspec.json.Decoder(_HandleFields)


class Claim(msgspec.Struct, frozen=True):
    """What a turn starts with."""

    lookup: str
    """"hit", or why there is no handle."""
    turn: int
    conversation: str
    entry: Entry | None = None
    """The previous turn's, whether its handle is usable or not."""
    age_s: float | None = None
    owned: bool = True
    """False where the entry belongs to another turn that runs just now."""

    @property
    def hit(self) -> bool:
        """Whether the handle may be sent to prefill."""
        return self.lookup == "hit"

    def withheld(self, lookup: str) -> Claim:
        """Return the same claim, its handle not to be used."""
        return replace(self, lookup=lookup)


def prefill_params(entry: Entry | None, context: TurnContext) -> bytes:
    """Return the params of a prefill call: with a handle where an entry is given, without one otherwise."""
    head = FIRST if entry is None or entry.handle is None else entry.handle[:-1]
    theirs = entry.context if entry is not None else None
    return b'%b,"%b":%b}' % (head, KEY.encode(), _merge(theirs, context))


def decode_params(params: dict[str, msgspec.Raw], context: TurnContext) -> bytes:
    """Return the params of a decode call: prefill's, with the turn's context."""
    theirs = params.get(KEY)
    merged = _merge(None if theirs is None else bytes(theirs), context)
    return _encoder.encode({**params, KEY: msgspec.Raw(merged)})


def _merge(theirs: bytes | None, ours: TurnContext) -> bytes:
    """Join what a connector said with the turn's context, which wins."""
    encoded = _encoder.encode(ours)
    if theirs is None:
        return encoded
    try:
        return _encoder.encode({**_fields.decode(theirs), **_fields.decode(encoded)})
    except (msgspec.DecodeError, RecursionError):
        return encoded


class Ledger:
    """Gives each handle out once and judges it before it does."""

    def __init__(
        self, store: Store, *, handle_ttl_s: float | None, decode_ttl_s: float, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._clock = clock
        self.handle_ttl_s = handle_ttl_s
        self._decode_ttl_s = decode_ttl_s
        self._engines: dict[str, str] = {}
        self._ttls: dict[str, float] = {}

    async def claim(self, identity: Identity) -> Claim:
        """Look the conversation up and take its handle."""
        entry = None if identity.key is None else await self._store.claim(identity.key)
        if entry is None:
            return Claim(_unlinked(identity), identity.answered + 1, identity.conversation)
        if not entry.turn:
            return Claim(entry.state, identity.answered + 1, identity.conversation, owned=False)
        age = max(0.0, self._clock() - entry.ended_at)
        lookup = self._judge(entry, age, identity)
        return Claim(lookup, entry.turn + 1, entry.conversation or identity.conversation, entry, age)

    @property
    def ttl_s(self) -> float:
        """For how long a handle is sent where decode says nothing with the handle itself."""
        if self.handle_ttl_s is not None:
            return self.handle_ttl_s
        return usable_ttl(min(self._ttls.values(), default=self._decode_ttl_s))

    def _ttl(self, entry: Entry) -> float:
        """Return for how long this handle may be sent: as set, else by what decode said, else by its default."""
        return usable_ttl(self._kept_for(entry)) if self.handle_ttl_s is None else self.handle_ttl_s

    def _kept_for(self, entry: Entry) -> float:
        told = _told_ttl(entry.context)
        return told if told is not None else self._ttls.get(entry.decode or "", self._decode_ttl_s)

    def expired(self, claim: Claim) -> bool:
        """Return whether prefill had to decline the handle, by what is known of decode's TTL."""
        entry, age = claim.entry, claim.age_s
        return entry is not None and age is not None and age > usable_ttl(self._kept_for(entry), safety_s=0)

    def learn(self, decode: str, *, engine_id: str | None, ttl_s: float | None) -> None:
        """Take what a decode engine's metrics say of it."""
        if engine_id:
            self._engines[decode] = _process(engine_id)
        if ttl_s is not None:
            self._ttls[decode] = ttl_s

    def _judge(self, entry: Entry, age: float, identity: Identity) -> str:
        if entry.handle is None:
            return entry.state
        if age > self._ttl(entry):
            return "stale"
        known = self._engines.get(entry.decode or "")
        if known is not None and _process(entry.engine_id) != known:
            return "restarted"
        return "hit" if _continues(entry, identity) else "in_history"

    def commit(
        self, identity: Identity, reply: Reply | None, entry: Entry, handle: bytes | None
    ) -> asyncio.Future[None] | None:
        """Keep what decode returned for the conversation's next turn."""
        key = identity.next_key(reply)
        if key is None:
            return None
        entry.ended_at = self._clock()
        self._fill(entry, handle)
        if entry.handle is not None and entry.context is None and identity.link == "name":
            entry.history_bytes = len(identity.history.as_sent)
            entry.history = identity.history.as_sent.digest(entry.history_bytes)
        return self._store.put(key, entry)

    def _fill(self, entry: Entry, handle: bytes | None) -> None:
        entry.state = "not_returned" if handle is None else "incomplete"
        if handle is None:
            return
        try:
            known = _handle.decode(handle)
            usable, context = _usable(handle, known)
        except (msgspec.DecodeError, RecursionError):
            return
        if not known.remote_num_tokens or _BLOCK.search(known.remote_block_ids) is None:
            return
        entry.state = "issued"
        entry.handle, entry.context = usable, context
        entry.engine_id, entry.tokens = known.remote_engine_id, known.remote_num_tokens
        if entry.decode is not None:
            self._engines[entry.decode] = _process(known.remote_engine_id)

    def give_back(self, identity: Identity, claim: Claim, *, unread: bool) -> None:
        """Undo a claim whose turn was not answered: the conversation stands where it stood.

        The handle survives only if no engine can have read it.
        """
        key, entry = identity.key, claim.entry
        if key is None or not claim.owned:
            return
        if entry is None:
            self._store.drop(key)
            return
        if not unread and entry.handle is not None:
            entry = replace(entry, handle=None, context=None, state="consumed")
        self._store.put(key, entry)

    def void(self, decode: str) -> None:
        """Void the handles of an engine that was down, until it returns one and so shows who it is now."""
        self._engines[decode] = ""


def _unlinked(identity: Identity) -> str:
    """Return why a conversation has no entry: it is new, unnamed or forgotten."""
    if identity.link is None and not identity.history.known:
        return "no_conversation_id"
    if identity.answered == 0:
        return "first_turn"
    return "router_lost_state" if identity.link == "name" else "no_conversation_id"


def _continues(entry: Entry, identity: Identity) -> bool:
    """Whether the history still begins with what decode holds.

    Only asked where decode's connector gives prefill nothing to compare: stock vLLM would read wrong KV silently.
    """
    if entry.history is None or entry.context is not None:
        return True
    return identity.history.as_sent.digest(entry.history_bytes) == entry.history


def _usable(handle: bytes, known: _HandleFields) -> tuple[bytes, bytes | None]:
    """Return the params for prefill and what was under `kvdiag`: unchanged bytes wherever that is enough."""
    if known.do_remote_decode and not known.do_remote_prefill and f'"{KEY}"'.encode() not in handle:
        return handle, None
    fields = _fields.decode(handle)
    context = fields.pop(KEY, None)
    fields["do_remote_decode"], fields["do_remote_prefill"] = _TRUE, _FALSE
    return _encoder.encode(fields), None if context is None else bytes(context)


def _told_ttl(context: bytes | None) -> float | None:
    if context is None:
        return None
    try:
        told = parse(HandleContext, {KEY: msgspec.json.decode(context)})
    except (msgspec.DecodeError, RecursionError):
        return None
    return told.ttl_s if told is not None else None


def _process(engine_id: str | None) -> str:
    """Return the part of an engine id that names the process: data-parallel ranks share an endpoint."""
    return (engine_id or "").partition("_dp")[0]


def usable_ttl(decode_ttl_s: float, *, margin_s: float = 5.0, safety_s: float = 2.0) -> float:
    """Return for how long a handle can be sent: decode's TTL less prefill's margin and some time to get there."""
    return max(0.0, decode_ttl_s - margin_s - safety_s) if math.isfinite(decode_ttl_s) else decode_ttl_s
