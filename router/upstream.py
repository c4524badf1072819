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
WATCH_S: Final = 0.1
"""Between two looks for engines that are silent for too long."""
ANSWER_LIMIT: Final = 256 << 20
"""Bytes of one buffered answer."""


class Exchange:
    """One request and its answer. Body bytes go to `sink` once it is set, until then they are kept."""

    __slots__ = (
        "_connection",
        "_parts",
        "_size",
        "_waiter",
        "_waits_for_all",
        "ended",
        "error",
        "headers",
        "loop",
        "patience",
        "read_at",
        "sink",
        "status",
    )

    def __init__(self, connection: _Connection, patience: float) -> None:
        self.loop = connection.loop
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.sink: Callable[[bytes], None] | None = None
        self.ended = False
        self.error: EngineError | None = None
        self.read_at = self.loop.time()
        self.patience = patience
        """Seconds without a byte after which the exchange fails; no limit while it is paused."""
        self._connection: _Connection | None = connection
        self._parts: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._waits_for_all = False

    @property
    def content_type(self) -> bytes:
        """The answer's media type."""
        return self.headers.get(b"content-type", b"")

    async def begun(self) -> None:
        """Wait for the first byte of the body, or the end of an empty answer."""
        if not (self.ended or self._parts or self.error):
            await self._wake(whole=False)
        if self.error is not None:
            raise self.error

    async def done(self, patience: float) -> None:
        """Wait for the end, as long as no silence lasts longer than `patience` seconds."""
        self.patience = patience
        if not (self.ended or self.error):
            await self._wake(whole=True)
        if self.error is not None:
            raise self.error

    async def body(self, patience: float) -> bytes:
        """Return the whole body."""
        await self.done(patience)
        return self.take()

    async def _wake(self, *, whole: bool) -> None:
        self._waits_for_all = whole
        self._waiter = self.loop.create_future()
        await self._waiter

    def _woken(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def feed(self, data: bytes) -> None:
        """Take body bytes from the connection."""
        if self.sink is not None:
            self.sink(data)
            return
        self._parts.append(data)
        self._size += len(data)
        if self._size > ANSWER_LIMIT:
            self.abort(EngineLostError(f"answer of more than {ANSWER_LIMIT} bytes"))
        elif not self._waits_for_all:
            self._woken()

    def finish(self, data: bytes) -> None:
        """Take the last bytes; the sink sees by `ended` that there are no more."""
        self._connection = None
        self.ended = True
        self.feed(data)
        self._woken()

    def fail(self, error: EngineError) -> None:
        """Give the error to whoever waits."""
        self._connection = None
        self.error = error
        self._woken()

    def take(self) -> bytes:
        """Return the body bytes kept so far, once."""
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pause(self) -> None:
        """Stop reading from the engine while the client does not read from us."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read on."""
        self.read_at = self.loop.time()
        if self._connection is not None:
            self._connection.resume()

    def abort(self, error: EngineError | None = None) -> None:
        """Drop the connection: vLLM cancels a request whose client went away."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        if error is not None:
            self.fail(error)


class _Connection(asyncio.Protocol):
    """One connection to an engine; back in its pool before the exchange's waiter runs."""

    def __init__(self, pool: Upstream) -> None:
        self.loop = pool.loop
        self.idle_since = 0.0
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._parts: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._complete = self._keep = self._paused = False

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in {socket.AF_INET, socket.AF_INET6}:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, request: bytes, patience: float) -> Exchange:
        self._exchange = exchange = Exchange(self, patience)
        self._complete = False
        if self._transport is None:
            self._drop(EngineLostError("connection lost"))
        else:
            self._transport.write(request)
        return exchange

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:  # an engine never speaks first
            self.abort()
            return
        exchange.read_at = self.loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._drop(EngineLostError("answer is not HTTP"))
            return
        parts, self._parts = self._parts, []
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if self._complete:
            self._done(exchange, body, keep=self._keep)
        elif body:
            exchange.feed(body)

    def _done(self, exchange: Exchange, body: bytes, *, keep: bool) -> None:
        self._exchange = None
        self.resume()
        if keep:
            self._pool.release(self)
        else:
            self.abort()
        exchange.finish(body)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._exchange is not None:
            self._exchange.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._exchange is not None:
            self._exchange.status = self._parser.get_status_code()

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
            self._done(exchange, b"", keep=False)
        else:
            self._drop(EngineLostError("connection lost"))

    def expire(self, now: float) -> None:
        """Give up an engine that has been silent for too long; a paused one is not silent but stopped."""
        exchange = self._exchange
        if exchange is not None and not self._paused and now - exchange.read_at >= exchange.patience:
            self._drop(EngineTimeoutError(f"no data within {exchange.patience:g} s"))

    def _drop(self, error: EngineError) -> None:
        exchange = self._exchange
        self.abort()
        if exchange is not None:
            exchange.fail(error)

    def pause(self) -> None:
        if self.alive and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self.alive and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        self._exchange = None
        self._pool.forget(self)
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
        self._busy: set[_Connection] = set()
        self._watch: asyncio.TimerHandle | None = None

    async def open(self, request: bytes, patience: float) -> Exchange:
        """Send a whole request and wait for the first byte of the answer's body.

        A connection that ends without an answer is never answered by sending again: the engine may have read the
        blocks that the request names, which can be read once only.

        Raises:
            EngineUnreachableError: no connection could be made; the engine has seen nothing.
            EngineLostError: the connection ended before the first byte.
            EngineTimeoutError: `patience` seconds of silence.

        """
        connection = self._reuse() or await self._connect()
        self._busy.add(connection)
        if self._watch is None:
            self._watch = self.loop.call_later(WATCH_S, self._expire)
        exchange = connection.send(request, patience)
        try:
            await exchange.begun()
        except BaseException:
            exchange.abort()
            raise
        return exchange

    def _expire(self) -> None:
        """Look for silent engines; one look at all exchanges costs less than a timer for each."""
        now = self.loop.time()
        for connection in tuple(self._busy):
            connection.expire(now)
        self._watch = self.loop.call_later(WATCH_S, self._expire) if self._busy else None

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
        self._busy.discard(connection)
        self._idle.append(connection)

    def forget(self, connection: _Connection) -> None:
        """Drop a closed connection."""
        self._busy.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().abort()
