"""One call to one engine: connection, load, breaker and span around an exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from kvdiag.router.faults import EngineError, EngineUnreachableError

if TYPE_CHECKING:
    from types import TracebackType

    from kvdiag.exporters.spans import Span
    from kvdiag.router.exchange import Exchange
    from kvdiag.router.placement import Engine


class Call:
    """An exchange with an engine, as a context: whatever happens, load and span are settled and nothing leaks.

    A forgiving call carries a handle: when it fails, the handle is the suspect and not the engine.
    """

    __slots__ = ("_forgiving", "_span", "_target", "engine", "exchange", "sent")

    def __init__(self, engine: Engine, target: bytes, span: Span | None = None, *, forgiving: bool = False) -> None:
        self.engine = engine
        self._forgiving = forgiving
        self._target = target
        self._span = span
        self.exchange: Exchange | None = None
        self.sent = False
        """Whether the engine may have seen the request."""

    async def open(self, headers: bytes, body: bytes | None, seconds: float, method: bytes = b"POST") -> Exchange:
        """Send the request and wait for the first byte of the answer's body."""
        if self._span is not None:
            headers = b"traceparent: %b\r\n%b" % (self._span.traceparent.encode(), headers)
        request = self.engine.request(method, self._target, headers, body)
        try:
            self.exchange = await self.engine.upstream.open(request, seconds)
        except EngineUnreachableError:
            raise
        except BaseException:
            self.sent = True
            raise
        self.sent = True
        return self.exchange

    def __enter__(self) -> Self:
        self.engine.picked()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        del traceback
        self.engine.left()
        status = self.exchange.status if self.exchange is not None else 0
        if error is not None and self.exchange is not None:
            self.exchange.abort()
        if isinstance(error, EngineUnreachableError) or (not self._forgiving and isinstance(error, EngineError)):
            self.engine.failed()
        elif error is None:
            self.engine.succeeded()
        if self._span is not None:
            self._span.set({"http.response.status_code": status or None})
            self._span.end(error=_failure(kind, status))


def _failure(kind: type[BaseException] | None, status: int) -> str | None:
    if kind is not None:
        return kind.__name__
    return str(status) if status >= 500 else None
