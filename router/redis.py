"""Handles in Redis or Valkey, for several replicas: one pipelined connection, and no turn that waits long for it.

A general client costs more CPU per turn than the rest of the turn, see docs/router.md; the parser is hiredis.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections import deque
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote, urlsplit

import hiredis
import msgspec

from kvdiag.errors import InputError
from kvdiag.router.stores import CLAIMED, Entry

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("kvdiag.router")
PREFIX: Final = b"kvdiag:handle:1:"
BACKOFF_S: Final = (0.1, 5.0)
"""First and longest pause between two attempts to connect."""
PENDING_LIMIT: Final = 10_000
"""Commands without an answer; more than that, and the server counts as down."""
_CREDENTIALS: Final = re.compile("//.*@", re.DOTALL)
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Entry)
_CLAIMED: Final = _encoder.encode(CLAIMED)

Answer = bytes | int | Exception | None


class RedisStore:
    """The store protocol on one server. Whatever goes wrong is an answer of None and `on_up(0)`."""

    def __init__(self, url: str, *, ttl_s: float, timeout_s: float, on_up: Callable[[int], None]) -> None:
        self._server = Server.parse(url)
        self._ttl = b"%d" % max(1, round(ttl_s))
        self._timeout_s = timeout_s
        self._on_up = on_up
        self._link: _Link | None = None
        self._tried = asyncio.Event()
        self._trouble: str | None = None
        self._task = asyncio.get_running_loop().create_task(self._stay_connected())

    async def ready(self) -> None:
        """Wait for the first attempt to connect: a replica that serves before it would know no conversation."""
        await self._tried.wait()

    async def claim(self, key: bytes) -> Entry | None:
        """Take the entry and leave `CLAIMED`: one command, so that of two replicas one gets it."""
        if self._link is None:
            return None
        found = await self._link.send(b"SET", PREFIX + key, _CLAIMED, b"EX", self._ttl, b"GET")
        if not isinstance(found, bytes):
            return None
        try:
            return _decoder.decode(found)
        except msgspec.DecodeError:
            return None

    def put(self, key: bytes, entry: Entry) -> asyncio.Future[None] | None:
        """Keep an entry."""
        return self._write(b"SET", PREFIX + key, _encoder.encode(entry), b"EX", self._ttl)

    def drop(self, key: bytes) -> asyncio.Future[None] | None:
        """Forget a conversation."""
        return self._write(b"DEL", PREFIX + key)

    def _write(self, *command: bytes) -> asyncio.Future[None] | None:
        # Whoever waits for a write only waits; its answer tells nobody anything.
        return None if self._link is None else cast("asyncio.Future[None]", self._link.send(*command))

    async def close(self) -> None:
        """Stop reconnecting and let the connection go."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._link is not None:
            self._link.close()

    async def _stay_connected(self) -> None:
        pause, longest = BACKOFF_S
        while True:
            try:
                link = await self._server.connect(self._timeout_s)
            except (OSError, TimeoutError, hiredis.ReplyError) as error:
                self._say(str(error) or "timed out")
                self._on_up(0)
                self._tried.set()
            else:
                pause = BACKOFF_S[0]
                self._link = link
                self._say(None)
                self._on_up(1)
                self._tried.set()
                await link.lost.wait()
                self._link = None
                self._on_up(0)
                self._say("connection lost")
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)

    def _say(self, trouble: str | None) -> None:
        """Log a change of state once, not every attempt of an outage."""
        if (trouble is None) == (self._trouble is None):
            return
        self._trouble = trouble
        if trouble is None:
            log.info("handle store: connected")
        else:
            log.warning("handle store: %s; serving without reuse until it answers", trouble)


class Server(msgspec.Struct, frozen=True):
    """Where the server is and who we are there."""

    host: str
    port: int
    tls: bool
    database: int
    user: str
    password: str

    @classmethod
    def parse(cls, url: str) -> Server:
        """Read `redis://[user:password@]host:port/database`, `rediss://` with TLS."""
        try:
            parts = urlsplit(url)
            port = parts.port or 6379
        except ValueError:
            raise _useless(url) from None
        database = parts.path.strip("/") or "0"
        if parts.scheme not in {"redis", "rediss"} or not parts.hostname or not database.isdigit():
            raise _useless(url)
        return cls(
            parts.hostname,
            port,
            parts.scheme == "rediss",
            int(database),
            unquote(parts.username or "default"),
            unquote(parts.password or ""),
        )

    async def connect(self, timeout_s: float) -> _Link:
        """Return a connection that is logged in."""
        context = ssl.create_default_context() if self.tls else None
        async with asyncio.timeout(max(timeout_s, 1.0)):
            _, link = await asyncio.get_running_loop().create_connection(
                lambda: _Link(timeout_s), self.host, self.port, ssl=context
            )
            greetings: list[tuple[bytes, ...]] = [(b"SELECT", b"%d" % self.database)]
            if self.password:
                greetings.insert(0, (b"AUTH", self.user.encode(), self.password.encode()))
            for greeting in greetings:
                answer = await link.send(*greeting)
                if answer != b"OK":
                    link.close()
                    raise answer if isinstance(answer, hiredis.ReplyError) else OSError("no answer from the server")
        return link


def _useless(url: str) -> InputError:
    shown = _CREDENTIALS.sub("//***@", url)
    return InputError(f"store url {shown!r} cannot be used; write redis://HOST:6379/0 (rediss:// for TLS)")


class _Link(asyncio.Protocol):
    """Commands out, answers back in order. A server that is too slow is dropped as if it were down."""

    def __init__(self, timeout_s: float) -> None:
        self.lost = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._reader = hiredis.Reader()
        self._waiting: deque[asyncio.Future[Answer]] = deque()
        self._unsent: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._answered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send(self, *command: bytes) -> asyncio.Future[Answer]:
        """Send a command; the future gives its answer, None where there is none."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        if self._transport is None or len(self._waiting) >= PENDING_LIMIT:
            future.set_result(None)
            return future
        self._waiting.append(future)
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(b"*%d\r\n" % len(command))
        self._unsent += [b"$%d\r\n%b\r\n" % (len(part), part) for part in command]
        if self._watch is None:
            self._watch = self._loop.call_later(self._timeout_s, self._check, self._answered)
        return future

    def _flush(self) -> None:
        """Send what one round of the event loop asked for in one write: of a busy router's cost most is system calls."""
        commands, self._unsent = b"".join(self._unsent), []
        if self._transport is not None:
            self._transport.write(commands)

    def _check(self, answered: int) -> None:
        """Drop a server that answered nothing since the last look."""
        self._watch = None
        if not self._waiting:
            return
        if answered == self._answered:
            self.close()
        else:
            self._watch = self._loop.call_later(self._timeout_s, self._check, self._answered)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (answer := self._reader.gets()) is not False:
                self._answered += 1
                self._settle(answer)
        except hiredis.ProtocolError:
            self.close()

    def _settle(self, answer: Answer) -> None:
        if not self._waiting:
            return
        future = self._waiting.popleft()
        if not future.done():
            future.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        while self._waiting:
            self._settle(None)
        self.lost.set()

    def close(self) -> None:
        """End the connection; what waits gets None."""
        if self._transport is not None:
            self._transport.abort()
            self.connection_lost(None)
