"""Keep-alive HTTP/1.1 connections to engines: one exchange at a time on each, nothing else on the data path.

A pooled httptools client of this size costs a third of what general clients cost per request, see docs/router.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from typing import Final, cast

import httptools

from kvdiag.router.exchange import Exchange
from kvdiag.router.faults import EngineError, EngineLostError, EngineTimeoutError, EngineUnreachableError

IDLE_LIMIT: Final = 4.0
"""Seconds an idle connection is trusted; vLLM's server closes idle ones after five."""
WATCH_S: Final = 0.5
"""Between two looks for engines that are silent for too long: each wakes the process up."""


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
        elif self._pool.gathers:
            self.loop.call_soon(self._write, request)
        else:
            self._transport.write(request)
        return exchange

    def _write(self, request: bytes) -> None:
        if self.alive and self._transport is not None:
            self._transport.write(request)

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

    def __init__(
        self, host: str, port: int, *, tls: bool = False, connect_s: float = 5.0, gathers: bool = False
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.gathers = gathers
        """Whether the requests of one turn of the loop are sent together: each send by itself wakes up the engine. Not for
        streams, which would then begin in step and arrive in more and smaller pieces."""
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
