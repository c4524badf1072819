"""One request to an engine and its answer, as whoever asked sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from kvdiag.router.faults import EngineLostError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from kvdiag.router.faults import EngineError

ANSWER_LIMIT: Final = 256 << 20
"""Bytes of one buffered answer."""


class Carrier(Protocol):
    """The connection that an exchange is on."""

    loop: asyncio.AbstractEventLoop

    def pause(self) -> None:
        """Stop reading."""
        ...

    def resume(self) -> None:
        """Read on."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


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

    def __init__(self, connection: Carrier, patience: float) -> None:
        self.loop = connection.loop
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.sink: Callable[[bytes], None] | None = None
        self.ended = False
        self.error: EngineError | None = None
        self.read_at = self.loop.time()
        self.patience = patience
        """Seconds without a byte after which the exchange fails; no limit while it is paused."""
        self._connection: Carrier | None = connection
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
