"""Which conversation a request belongs to: what the client says, in a fixed order."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvdiag.router.bodies import Body

ID_LIMIT: Final = 512
"""Bytes of a conversation id; longer ones are not taken as ids."""
HEADERS: Final = (b"x-conversation-id", b"x-session-id")
FIELDS: Final = ("conversation_id", "session_id")
CREDENTIALS: Final = (b"authorization", b"x-api-key", b"api-key")


@dataclass(frozen=True, slots=True)
class Identity:
    """How a request links to earlier ones."""

    key: bytes | None
    """The ledger's key, None where nothing links."""
    conversation: str | None
    """Keyed hash for logs and traces."""
    explicit: bool
    """Whether the client named the conversation."""
    answered: int
    """Answers of the model in the history that was sent."""
    countable: bool
    """Whether there is a history to count them in."""


class _Role(msgspec.Struct):
    role: str | None = None


_role: Final = msgspec.json.Decoder(_Role)


class Identifier:
    """Reads identities. Ids are hashed with a secret: neither logs nor the store hold what a client sent."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = hashlib.sha256(secret or secrets.token_bytes(32)).digest()

    def identify(self, headers: Mapping[bytes, bytes], body: Body) -> Identity:
        """Return who asks."""
        history = body.history()
        answered = sum(map(_is_answer, history))
        name = self._named(headers, body)
        key = None
        if name is not None:
            tenant = next((headers[name] for name in CREDENTIALS if name in headers), b"")
            key = self.digest(tenant, (body.model or "").encode(), name)
        return Identity(
            key=key,
            conversation=None if key is None else key.hex()[:16],
            explicit=key is not None,
            answered=answered,
            countable=bool(history) and body.api.history != "prompt",
        )

    def _named(self, headers: Mapping[bytes, bytes], body: Body) -> bytes | None:
        candidates = [headers.get(name) for name in HEADERS]
        candidates += [_encoded(body.text(name)) for name in FIELDS]
        candidates.append(_encoded(body.nested_text("metadata", "conversation_id")))
        return next((name for name in candidates if name and len(name) <= ID_LIMIT), None)

    def digest(self, *parts: bytes) -> bytes:
        """Return a keyed digest of parts; where one part ends cannot be forged."""
        state = hashlib.blake2b(key=self._secret, digest_size=16)
        for part in parts:
            state.update(b"%d:" % len(part))
            state.update(part)
        return state.digest()


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _is_answer(item: msgspec.Raw) -> bool:
    if b'"assistant"' not in bytes(item):
        return False
    try:
        return _role.decode(item).role == "assistant"
    except (msgspec.DecodeError, RecursionError):
        return False
