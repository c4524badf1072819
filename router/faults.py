"""What can go wrong between the router and an engine. Never shown to clients as such."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class EngineError(Exception):
    """An exchange with an engine did not complete."""


class EngineUnreachableError(EngineError):
    """No connection: the engine has not seen the request, so its handle is still unread."""


class EngineLostError(EngineError):
    """The connection ended or was malformed after the request had been sent."""


class EngineTimeoutError(EngineError):
    """The engine did not answer within its deadline."""


class RefusedError(Exception):
    """An engine found fault with the request itself: the client gets the engine's answer."""

    def __init__(self, status: int, headers: Mapping[bytes, bytes], body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers
        self.body = body


class NoEngineError(EngineError):
    """No engine of the role can take the request now."""
