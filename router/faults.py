"""What can go wrong between the router and an engine. Never shown to clients as such."""

from __future__ import annotations


class EngineError(Exception):
    """An exchange with an engine did not complete."""


class EngineUnreachableError(EngineError):
    """No connection: the engine has not seen the request, so its handle is still unread."""


class EngineLostError(EngineError):
    """The connection ended or was malformed after the request had been sent."""


class EngineTimeoutError(EngineError):
    """The engine did not answer within its deadline."""


class NoEngineError(EngineError):
    """No engine of the role can take the request now."""
