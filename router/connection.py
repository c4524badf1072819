"""One client's connection: requests in, answers out, one at a time."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

from kvdiag.router.intake import Intake, Limits, Phase, Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PIPELINE_LIMIT: Final = 8
"""Requests that may wait on one connection while an earlier one is answered."""
LINGER_S: Final = 2.0
"""Seconds in which a refused client may still be sending, so that it gets to read why."""
NEVER: Final = float("inf")
_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

Headers = tuple[tuple[bytes, bytes], ...]


class Connection(asyncio.Protocol):
    """One client. The handler runs in the connection's own task, which is cancelled when the client goes away."""

    def __init__(
        self, handler: Callable[[Request, Connection], Awaitable[None]], limits: Limits, peers: set[Connection]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._handler = handler
        self._limits = limits
        self._peers = peers
        self._intake = Intake(limits, deliver=self._deliver, refuse=self._refuse, invite=self._invite)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[Request] = deque()
        self._request: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._last = False
        self._chunked = True
        self.deadline = NEVER
        """Loop time at which `expire` ends the connection."""
        self.head_sent = False
        self.paused = False
        self._paused_at = NEVER
        self._paused_s = 0.0
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register; refuse when there are too many clients."""
        self._transport = transport = cast("asyncio.Transport", transport)
        if len(self._peers) >= self._limits.connections:
            transport.abort()
            return
        self._peers.add(self)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in {socket.AF_INET, socket.AF_INET6}:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.deadline = self._loop.time() + self._limits.head_s

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request that is being served: nobody will read its answer."""
        del exc
        self._transport = None
        self._peers.discard(self)
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse, and give each new phase its deadline."""
        before = self._intake.phase
        self._intake.feed(data)
        phase = self._intake.phase
        if phase is not before and self._request is None:
            now = self._loop.time()
            if phase is Phase.HEAD:
                self.deadline = now + self._limits.head_s
            elif phase is Phase.BODY:
                self.deadline = now + self._limits.body_s

    def eof_received(self) -> None:
        """Treat a half-closed client as gone, as other servers do."""

    def pause_writing(self) -> None:
        """Stop the source: the client does not read."""
        self.paused = True
        self._paused_at = self._loop.time()
        self.deadline = self._paused_at + self._limits.drain_s
        if self.on_pause is not None:
            self.on_pause()

    def resume_writing(self) -> None:
        """Go on."""
        self._paused_s = self.paused_s
        self.paused = False
        self.deadline = NEVER
        if self.on_resume is not None:
            self.on_resume()

    # What the intake calls.

    def _deliver(self, request: Request) -> None:
        if self._last:
            return
        if self._request is None:
            self._serve(request)
        elif len(self._waiting) < PIPELINE_LIMIT:
            self._waiting.append(request)
            self._pause_reading()
        else:
            self.abort()

    def _invite(self) -> None:
        if self._request is None:
            self._write(_CONTINUE)

    def _refuse(self, status: int) -> None:
        """Answer outside of a handler, then close: what follows on this connection cannot be trusted."""
        if self._request is not None:  # an answer is being written: anything more would corrupt it
            self.abort()
            return
        phrase = HTTPStatus(status).phrase
        self._last = True
        self.respond(
            status, b'{"error":{"message":"%b","type":"invalid_request_error","code":%d}}' % (phrase.encode(), status)
        )
        self.deadline = self._loop.time() + LINGER_S
        self._loop.call_soon(self._half_close)

    # What the handler calls.

    @property
    def paused_s(self) -> float:
        """Return for how long this request's answer has waited for the client to read."""
        return self._paused_s + (self._loop.time() - self._paused_at if self.paused else 0.0)

    @property
    def closed(self) -> bool:
        """Whether the client has gone."""
        return self._transport is None or self._transport.is_closing()

    def respond(
        self, status: int, body: bytes, content_type: bytes = b"application/json", headers: Headers = ()
    ) -> None:
        """Send a whole answer in one write."""
        self._write(self._head(status, content_type, headers) + b"content-length: %d\r\n\r\n%b" % (len(body), body))

    def start(self, status: int, content_type: bytes, headers: Headers, data: bytes, *, last: bool) -> None:
        """Send the head of a stream together with its first bytes, and its end if these are also the last."""
        head = self._head(status, content_type, headers)
        framing = b"transfer-encoding: chunked\r\n\r\n" if self._chunked else b"\r\n"
        self._write(b"%b%b%b%b" % (head, framing, self._frame(data), self._end if last else b""))

    def write(self, data: bytes) -> None:
        """Send more of a stream."""
        self._write(self._frame(data))

    def finish(self, data: bytes) -> None:
        """Send the last bytes of a stream and its end."""
        self._write(self._frame(data) + self._end)

    def abort(self) -> None:
        """Drop the client."""
        self._last = True
        if self._transport is not None:
            self._transport.abort()

    # What the server calls.

    def shut(self) -> None:
        """Close: at once when idle, else after the answer that is being written."""
        self._last = True
        self._waiting.clear()
        if self._request is None:
            self._loop.call_soon(self._close)

    def expire(self, now: float) -> None:
        """End the connection if its deadline has passed."""
        if now < self.deadline:
            return
        if self._intake.phase in {Phase.HEAD, Phase.BODY} and self._request is None:
            self._refuse(408)
            self._intake.phase = Phase.REFUSED
        else:
            self.abort()

    # Inner works.

    @property
    def _end(self) -> bytes:
        return b"0\r\n\r\n" if self._chunked else b""

    def _frame(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if data and self._chunked else data

    def _head(self, status: int, content_type: bytes, headers: Headers) -> bytes:
        self.head_sent = True
        request = self._request
        keep_alive = request is not None and request.keep_alive and request.chunked and not self._last
        self._last = not keep_alive
        extra = b"".join([b"%b: %b\r\n" % pair for pair in headers])
        return b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\n%b%b" % (
            status,
            _REASONS.get(status, b"Unknown"),
            content_type,
            b"" if keep_alive else b"connection: close\r\n",
            extra,
        )

    def _write(self, data: bytes) -> None:
        """Send at the end of this turn of the loop, with all else: each send by itself wakes up its receiver."""
        if data:
            self._loop.call_soon(self._put, data)

    def _put(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _half_close(self) -> None:
        if self._transport is not None and not self._transport.is_closing() and self._transport.can_write_eof():
            self._transport.write_eof()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _serve(self, request: Request) -> None:
        self._request = request
        self._paused_s = 0.0
        self._chunked = request.chunked
        self.head_sent = False
        self.deadline = NEVER
        if self._task is None:
            self._task = self._loop.create_task(self._run())
        elif self._arrival is not None:
            self._arrival.set_result(None)

    async def _run(self) -> None:
        """Serve one request after another: a task for each would cost as much as reading it."""
        try:
            while True:
                while self._request is not None:
                    await self._handler(self._request, self)
                    self._served()
                self._arrival = self._loop.create_future()
                await self._arrival
                self._arrival = None
        finally:
            self.abort()

    def _served(self) -> None:
        self._request = self.on_pause = self.on_resume = None
        if self._transport is None:
            return
        if self._last or not self.head_sent:
            self._loop.call_soon(self._close)
        elif self._waiting:
            self._serve(self._waiting.popleft())
            self._resume_reading()
        else:
            self.deadline = self._loop.time() + self._limits.idle_s

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._waiting and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
