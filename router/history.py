"""The conversation so far, as sent: counted, and digested message by message."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Final

import msgspec

from kvdiag.router.replies import Reply

if TYPE_CHECKING:
    from kvdiag.router.bodies import Body

_OUTSIDE: Final = ("system", "tools", "chat_template_kwargs", "documents")
"""Fields besides the messages that shape the prompt."""


class _Role(msgspec.Struct):
    role: str | None = None


_role: Final = msgspec.json.Decoder(_Role)
_object: Final = msgspec.json.Decoder()
_encoder: Final = msgspec.json.Encoder(order="deterministic")


class Chain:
    """A digest over items in order; asking for more items continues where the last digest ended."""

    def __init__(self, items: list[bytes], *prelude: bytes) -> None:
        self._items = items
        self._done = 0
        self._state = hashlib.sha256()
        for part in prelude:
            self._add(part)

    def _add(self, part: bytes) -> None:
        self._state.update(b"%d:" % len(part))
        self._state.update(part)

    def digest(self, count: int) -> bytes | None:
        """Return the digest of the first items; None where there are fewer, or more were asked for before."""
        if not self._done <= count <= len(self._items):
            return None
        for item in self._items[self._done : count]:
            self._add(item)
        self._done = count
        return self._state.digest()[:16]

    def extended(self, item: bytes) -> bytes:
        """Return the digest of all items and one more."""
        self.digest(len(self._items))
        state = self._state.copy()
        state.update(b"%d:" % len(item))
        state.update(item)
        return state.digest()[:16]


class History:
    """The messages of one request. Nothing is computed before it is asked for."""

    def __init__(self, body: Body) -> None:
        self._body = body

    @cached_property
    def items(self) -> list[bytes]:
        """The messages as the client wrote them."""
        return [bytes(item) for item in self._body.history()]

    @property
    def known(self) -> bool:
        """Whether the API sends a history at all."""
        return self._body.api.history != "prompt" and bool(self.items)

    @cached_property
    def answered(self) -> int:
        """Answers of the model among the messages."""
        return sum(map(_is_answer, self.items)) if self.known else 0

    @cached_property
    def through_last_answer(self) -> int:
        """Messages up to and with the last answer; 0 where there is none."""
        last = (index for index in range(len(self.items) - 1, -1, -1) if _is_answer(self.items[index]))
        return next(last, -1) + 1

    @cached_property
    def as_sent(self) -> Chain:
        """Digests of exactly what was sent."""
        return Chain(self.items, *self._outside())

    @cached_property
    def as_meant(self) -> Chain:
        """Digests that survive a client's rendering of our answers, and cache hints that move between turns."""
        return Chain([_meaning(item) for item in self.items], *self._outside())

    def _outside(self) -> list[bytes]:
        fields = self._body.fields
        return [name.encode() + b"=" + _without_hints(bytes(fields[name])) for name in _OUTSIDE if name in fields]


def _is_answer(item: bytes) -> bool:
    if b'"assistant"' not in item:
        return False
    try:
        return _role.decode(item).role == "assistant"
    except (msgspec.DecodeError, RecursionError):
        return False


def _meaning(item: bytes) -> bytes:
    if not _is_answer(item):
        return _without_hints(item)
    reply = Reply()
    reply.read_message(item)
    return reply.canonical()


def _without_hints(item: bytes) -> bytes:
    """Return an item without `cache_control`: clients move these between turns."""
    if b'"cache_control"' not in item:
        return item
    try:
        return _encoder.encode(_strip(_object.decode(item)))
    except (msgspec.DecodeError, RecursionError):
        return item


def _strip(value: object) -> object:
    if isinstance(value, dict):
        return {key: _strip(inner) for key, inner in value.items() if key != "cache_control"}
    if isinstance(value, list):
        return [_strip(inner) for inner in value]
    return value
