"""Keep-alive HTTP/1.1 connections to engines: one exchange at a time on each, nothing else on the data path.

A pooled httptools client of this size costs a third of what general clients cost per request, see docs/router.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from typing import TYPE_CHECKING, Final, cast

import httptools

from kvdiag.router.faults import EngineError, EngineLostError, EngineTimeoutError, EngineUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

IDLE_LIMIT: Final = 4.0
"""Seconds an idle connection is trusted; vLLM's server closes idle ones after five."""
ANSWER_LIMIT: Final = 256 << 20
"""Bytes of one buffered answer."""


class Exchange:
    """One request and its answer. Body bytes go to `sink` once it is set, until then they are kept."""

    __slots__ = (
        "_connection",
        "_parts",
        "_size",
        "content_type",
        "ended",
        "headers",
        "read_at",
        "sink",
        "started",
        "status",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.started: asyncio.Future[None] = loop.create_future()
        """Done with the first byte of the body, or at the end of an empty answer."""
        self.ended: asyncio.Future[None] = loop.create_future()
        self.sink: Callable[[bytes], None] | None = None
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.content_type = b""
        self.read_at = loop.time()
        self._parts: list[bytes] = []
        self._size = 0
        self._connection: _Connection | None = None

    def attach(self, connection: _Connection) -> None:
        """Remember who carries this exchange, for pausing and aborting."""
        self._connection = connection

    def feed(self, data: bytes) -> None:
        """Take body bytes from the connection."""
        if self.sink is not None:
            self.sink(data)
            return
        self._parts.append(data)
        self._size += len(data)
        if self._size > ANSWER_LIMIT:
            self.abort()
            self.fail(EngineLostError(f"answer of more than {ANSWER_LIMIT} bytes"))
        elif not self.started.done():
            self.started.set_result(None)

    def finish(self) -> None:
        """Mark the answer as complete."""
        self._connection = None
        if not self.started.done():
            self.started.set_result(None)
        if not self.ended.done():
            self.ended.set_result(None)

    def fail(self, error: EngineError) -> None:
        """Give the error to whoever waits."""
        self._connection = None
        for future in (self.started, self.ended):
            if not future.done():
                future.set_exception(error)
                future.exception()  # the waiter may have gone: that is not worth a warning

    def take(self) -> bytes:
        """Return the body bytes kept so far, once."""
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def body(self, seconds: float) -> bytes:
        """Return the whole body."""
        await within(self.ended, seconds)
        return self.take()

    def pause(self) -> None:
        """Stop reading from the engine while the client does not read from us."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read on."""
        if self._connection is not None:
            self._connection.resume()

    def abort(self) -> None:
        """Drop the connection: vLLM cancels a request whose client went away."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None


async def within(future: asyncio.Future[None], seconds: float) -> None:
    """Wait for a future of an exchange, at most so long."""
    if future.done():
        return future.result()
    timer = asyncio.get_running_loop().call_later(seconds, _expire, future, seconds)
    try:
        await future
    finally:
        timer.cancel()
    return None


def _expire(future: asyncio.Future[None], seconds: float) -> None:
    if not future.done():
        future.set_exception(EngineTimeoutError(f"no answer within {seconds:g} s"))


class _Connection(asyncio.Protocol):
    """One connection to an engine; back in its pool before the exchange's waiter runs."""

    def __init__(self, pool: Upstream) -> None:
        self._pool = pool
        self._loop = pool.loop
        self._exchange: Exchange | None = None
        self._parts: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._complete = False
        self._keep = False
        self.idle_since = 0.0

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in {socket.AF_INET, socket.AF_INET6}:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, exchange: Exchange, request: bytes) -> None:
        self._exchange = exchange
        self._complete = False
        self._parser = httptools.HttpResponseParser(self)
        exchange.attach(self)
        if self._transport is None:
            self._drop(EngineLostError("connection lost"))
        else:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:  # an engine never speaks first
            self._close()
            return
        exchange.read_at = self._loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._drop(EngineLostError("answer is not HTTP"))
            return
        self._flush(exchange)
        if self._complete:
            self._done(exchange, keep=self._keep)

    def _flush(self, exchange: Exchange) -> None:
        parts = self._parts
        if parts:
            self._parts = []
            exchange.feed(parts[0] if len(parts) == 1 else b"".join(parts))

    def _done(self, exchange: Exchange, *, keep: bool) -> None:
        self._exchange = None
        self.resume()
        if keep:
            self._pool.release(self)
        else:
            self._close()
        exchange.finish()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._exchange is not None:
            self._exchange.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._exchange is not None:
            self._exchange.status = self._parser.get_status_code()
            self._exchange.content_type = self._exchange.headers.get(b"content-type", b"")

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_message_complete(self) -> None:
        self._keep = self._parser.should_keep_alive()
        self._complete = not 100 <= self._parser.get_status_code() < 200

    def eof_received(self) -> None:
        """Let the transport close; `connection_lost` follows."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._pool.forget(self)
        exchange = self._exchange
        if exchange is None:
            return
        headers = exchange.headers
        unframed = exchange.status and b"content-length" not in headers and b"transfer-encoding" not in headers
        if unframed and exc is None:  # the end of the connection is the end of the answer
            self._done(exchange, keep=False)
        else:
            self._drop(EngineLostError("connection lost"))

    def _drop(self, error: EngineError) -> None:
        exchange, self._exchange = self._exchange, None
        self._close()
        if exchange is not None:
            exchange.fail(error)

    def pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def abort(self) -> None:
        self._exchange = None
        self._close()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Upstream:
    """The connections to one engine."""

    def __init__(self, host: str, port: int, *, tls: bool = False, connect_s: float = 5.0) -> None:
        self.loop = asyncio.get_running_loop()
        self._host = host
        self._port = port
        self._ssl = ssl.create_default_context() if tls else None
        self._connect_s = connect_s
        self._idle: deque[_Connection] = deque()

    async def open(self, request: bytes, seconds: float) -> Exchange:
        """Send a whole request and wait for the first byte of the answer's body.

        A connection that ends without an answer is never answered by sending again: the engine may have read the
        blocks that the request names, which can be read once only.

        Raises:
            EngineUnreachableError: no connection could be made; the engine has seen nothing.
            EngineLostError: the connection ended before the first byte.
            EngineTimeoutError: no first byte within so many seconds.

        """
        connection = self._reuse() or await self._connect()
        exchange = Exchange(self.loop)
        connection.send(exchange, request)
        try:
            await within(exchange.started, seconds)
        except BaseException:
            exchange.abort()
            raise
        return exchange

    def _reuse(self) -> _Connection | None:
        oldest = self.loop.time() - IDLE_LIMIT
        while self._idle:
            connection = self._idle.pop()
            if connection.alive and connection.idle_since >= oldest:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> _Connection:
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await self.loop.create_connection(
                    lambda: _Connection(self), self._host, self._port, ssl=self._ssl
                )
        except (OSError, TimeoutError) as error:
            raise EngineUnreachableError(f"{self._host}:{self._port}: {error or 'connect timed out'}") from error
        return connection

    def release(self, connection: _Connection) -> None:
        """Keep a connection for the next exchange."""
        connection.idle_since = self.loop.time()
        self._idle.append(connection)

    def forget(self, connection: _Connection) -> None:
        """Drop a closed connection."""
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().abort()
