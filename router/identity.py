"""Which conversation a request belongs to: what the client says, in a fixed order, else what its history shows."""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from kvdiag.router.history import History

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvdiag.router.bodies import Body
    from kvdiag.router.replies import Reply

Link = Literal["name", "history", "response"] | None
ID_LIMIT: Final = 512
"""Bytes of a conversation id; longer ones are not taken as ids."""
HEADERS: Final = (b"x-conversation-id", b"x-session-id")
FIELDS: Final = ("conversation_id", "session_id")
CREDENTIALS: Final = (b"authorization", b"x-api-key", b"api-key")


class Identity(msgspec.Struct, frozen=True):
    """How a request links to earlier ones."""

    key: bytes | None
    """The ledger's key to claim, None where nothing links."""
    link: Link
    """What links the conversation's turns."""
    conversation: str
    """Keyed hash for logs and traces; for a derived conversation, until the ledger knows better, a new one."""
    history: History
    _identifier: Identifier
    _scope: bytes

    @property
    def answered(self) -> int:
        """Answers of the model in the history that was sent."""
        return self.history.answered

    @property
    def reads_replies(self) -> bool:
        """Whether the answer must be read to know the next turn by."""
        return self.link in {"history", "response"}

    def next_key(self, reply: Reply | None) -> bytes | None:
        """Return the key under which the next turn will look, None where it cannot be known."""
        if self.link == "name":
            return self.key
        if reply is None or not reply.readable:
            return None
        if self.link == "history":
            digest = self.history.as_meant.extended(reply.canonical())
            return self._identifier.digest(self._scope, b"history", digest)
        if reply.response_id is None:
            return None
        return self._identifier.digest(self._scope, b"response", reply.response_id.encode("utf-8", "surrogatepass"))


class Identifier:
    """Reads identities. Ids are hashed with a secret: neither logs nor the store hold what a client sent."""

    def __init__(self, secret: bytes | None, *, derive: bool) -> None:
        self._secret = hashlib.sha256(secret or secrets.token_bytes(32)).digest()
        self._derive = derive

    def identify(self, headers: Mapping[bytes, bytes], body: Body) -> Identity:
        """Return who asks."""
        tenant = next((headers[name] for name in CREDENTIALS if name in headers), b"")
        model = (body.model or "").encode()
        history = History(body)
        name = _named(headers, body)
        if name is not None:
            key = self.digest(tenant, model, b"name", name)
            return Identity(key, "name", key[:8].hex(), history, self, b"")
        scope = self.digest(tenant, model)
        link: Link = None
        linking: bytes | None = None
        if body.api.history == "input":
            link, linking = "response", self._response_key(scope, body)
        elif self._derive and body.api.history == "messages":
            link, linking = "history", self._history_key(scope, history)
        return Identity(linking, link, secrets.token_hex(8), history, self, scope)

    def _response_key(self, scope: bytes, body: Body) -> bytes | None:
        previous = _usable(body.text("previous_response_id"))
        return None if previous is None else self.digest(scope, b"response", previous)

    def _history_key(self, scope: bytes, history: History) -> bytes | None:
        """Return the key that the turn before this one left, by the history up to its answer."""
        if not history.through_last_answer:
            return None
        digest = history.as_meant.digest(history.through_last_answer)
        return None if digest is None else self.digest(scope, b"history", digest)

    def digest(self, *parts: bytes) -> bytes:
        """Return a keyed digest of parts; where one part ends cannot be forged."""
        text = b"".join([b"%d:%b" % (len(part), part) for part in parts])
        return hashlib.blake2b(text, key=self._secret, digest_size=16).digest()


def _named(headers: Mapping[bytes, bytes], body: Body) -> bytes | None:
    for name in HEADERS:
        value = headers.get(name)
        if value and len(value) <= ID_LIMIT:
            return value
    return next(filter(None, map(_usable, _body_ids(body))), None)


def _body_ids(body: Body) -> list[str | None]:
    ids = [body.text(name) for name in FIELDS]
    if "metadata" in body.fields:
        ids.append(body.nested_text("metadata", "conversation_id"))
    return ids


def _usable(text: str | None) -> bytes | None:
    encoded = (text or "").encode("utf-8", "surrogatepass")
    return encoded if 0 < len(encoded) <= ID_LIMIT else None
