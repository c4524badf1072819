"""The conversation so far: counted, and digested as it was sent or as it was meant."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import xxhash

from kvdiag.router.replies import Reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvdiag.router.bodies import Body

_OUTSIDE: Final = ("system", "tools", "chat_template_kwargs", "documents")
"""Fields besides the messages that shape the prompt."""


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


class _Role(msgspec.Struct):
    role: str | None = None


_role: Final = msgspec.json.Decoder(_Role)
_object: Final = msgspec.json.Decoder()
_encoder: Final = msgspec.json.Encoder(order="deterministic")


class Text:
    """The history as the client wrote it, without the last bracket or quote: a longer one begins with a shorter one.

    A digest of more continues where the last digest ended. It is compared with nothing but the same conversation's, so
    that it need not withstand forgery and takes no time.
    """

    __slots__ = ("_done", "_state", "_text")

    def __init__(self, raw: msgspec.Raw | None, outside: list[bytes]) -> None:
        self._text = b"" if raw is None else bytes(memoryview(raw)[:-1]).rstrip()
        self._done = 0
        self._state = xxhash.xxh3_128()
        for part in outside:
            _add(self._state, part)

    def __len__(self) -> int:
        return len(self._text)

    def digest(self, length: int) -> bytes | None:
        """Return the digest of the beginning; None where it is none, or more was asked for before."""
        if not self._done <= length <= len(self._text) or self._cuts_an_item(length):
            return None
        self._state.update(memoryview(self._text)[self._done : length])
        self._done = length
        return self._state.digest()

    def _cuts_an_item(self, length: int) -> bool:
        """Whether a list's item goes on there: `[1` is no beginning of `[12`."""
        return self._text.startswith(b"[") and self._text[length : length + 1].strip() not in {b"", b","}


class Meaning:
    """Digests that survive a client's rendering of our answers, and cache hints that move between turns.

    They are what an unnamed conversation is known by, so nobody may be able to forge them.
    """

    __slots__ = ("_done", "_items", "_state")

    def __init__(self, items: Sequence[msgspec.Raw], outside: list[bytes]) -> None:
        self._items = items
        self._done = 0
        self._state = hashlib.sha256()
        for part in outside:
            _add(self._state, part)

    def digest(self, count: int) -> bytes | None:
        """Return the digest of the first items; None where there are fewer, or more were asked for before."""
        if not self._done <= count <= len(self._items):
            return None
        for item in self._items[self._done : count]:
            _add(self._state, _meaning(bytes(item)))
        self._done = count
        return self._state.digest()[:16]

    def extended(self, item: bytes) -> bytes:
        """Return the digest of all items and one more."""
        self.digest(len(self._items))
        state = self._state.copy()
        _add(state, item)
        return state.digest()[:16]


def _add(state: _Digest, part: bytes) -> None:
    state.update(b"%d:" % len(part))
    state.update(part)


class History:
    """The conversation in one request. Nothing is computed before it is asked for."""

    __slots__ = ("_answered", "_as_meant", "_as_sent", "_body", "_items")

    def __init__(self, body: Body) -> None:
        self._body = body
        self._items: list[msgspec.Raw] | None = None
        self._answered: list[int] | None = None
        self._as_sent: Text | None = None
        self._as_meant: Meaning | None = None

    @property
    def items(self) -> list[msgspec.Raw]:
        """The messages as the client wrote them."""
        if self._items is None:
            self._items = self._body.history()
        return self._items

    @property
    def known(self) -> bool:
        """Whether the API sends a history at all."""
        return self._body.api.history != "prompt" and bool(self.items)

    @property
    def _answers(self) -> list[int]:
        """The places of the model's answers."""
        if self._answered is None:
            items = self.items if self.known else []
            self._answered = [place for place, item in enumerate(items) if _is_answer(bytes(item))]
        return self._answered

    @property
    def answered(self) -> int:
        """Answers of the model among the messages."""
        return len(self._answers)

    @property
    def through_last_answer(self) -> int:
        """Messages up to and with the last answer; 0 where there is none."""
        return self._answers[-1] + 1 if self._answers else 0

    @property
    def as_sent(self) -> Text:
        """Digests of exactly what was sent."""
        if self._as_sent is None:
            self._as_sent = Text(self._body.fields.get(self._body.api.history), self._outside())
        return self._as_sent

    @property
    def as_meant(self) -> Meaning:
        """Digests of what was meant."""
        if self._as_meant is None:
            self._as_meant = Meaning(self.items, self._outside())
        return self._as_meant

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
