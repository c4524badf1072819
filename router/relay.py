"""A stream on its way from decode to the client: bytes through, the handle out, the state kept before the end is told."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from kvdiag.router.answers import error_event
from kvdiag.router.faults import EngineError, EngineLostError
from kvdiag.router.sse import EventFilter

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from kvdiag.router.bodies import Api
    from kvdiag.router.connection import Connection, Headers
    from kvdiag.router.exchange import Exchange
    from kvdiag.router.replies import Reply


TAIL: Final = 64
"""Bytes at the end of what was read in which the mark of the last event is looked for."""


class Relay:
    """Forwards one answer. A store that must be waited for holds the stream back at the event with the handle."""

    def __init__(
        self,
        connection: Connection,
        exchange: Exchange,
        *,
        headers: Headers,
        api: Api,
        commit: Callable[[bytes | None], asyncio.Future[None] | None],
        expose: bool,
        reply: Reply | None = None,
    ) -> None:
        self._connection = connection
        self._exchange = exchange
        self._headers = headers
        self._api = api
        self._commit = commit
        self._filter = EventFilter(expose=expose)
        self._reply = reply
        self._held: list[bytes] | None = None
        self._kept: asyncio.Future[None] | None = None
        self._committed = False
        self.first_at: float | None = None
        """When the first bytes went to the client, by `time.perf_counter`."""

    async def run(self, stall_s: float) -> None:
        """Forward everything.

        Raises:
            EngineError: the stream broke; the client has been told if it had received a part.

        """
        exchange, connection = self._exchange, self._connection
        connection.on_pause, connection.on_resume = exchange.pause, exchange.resume
        exchange.sink = self._feed
        try:
            self._feed(exchange.take())
            if connection.paused:
                exchange.pause()
            await exchange.done(stall_s)
            if self._kept is not None:
                await self._kept
                self._release(self._kept)
        except EngineError:
            if self._kept is not None:  # the handle is kept: another engine's answer would not be the one that it is of
                self._release(self._kept)
            if self.first_at is not None:
                connection.finish(error_event(self._api.path, 502, "the engine ended the stream early"))
            raise
        finally:
            connection.on_pause = connection.on_resume = exchange.sink = None

    def _feed(self, data: bytes) -> None:
        try:
            out = self._filter.feed(data)
        except ValueError as error:
            self._exchange.abort(EngineLostError(str(error)))
            return
        ended = self._exchange.ended
        if ended:
            out += self._filter.close()
        if not self._committed:
            if self._reply is not None:
                self._reply.read_events(out)
            if ended or self._filter.handle is not None or self._api.final in out[-TAIL:]:
                self._keep(self._filter.handle)
        self._emit(out)

    def _keep(self, handle: bytes | None) -> None:
        """Keep the state before the client can learn that the turn is over: its next turn may come at once."""
        self._committed = True
        pending = self._commit(handle)
        if pending is not None:
            self._held = []
            self._kept = pending
            self._kept.add_done_callback(self._release)

    def _release(self, kept: asyncio.Future[None]) -> None:
        """Send what waited: whichever comes first, the write's callback or the end of the stream."""
        held, self._held = self._held, None
        if held is not None and not kept.cancelled():
            self._emit(b"".join(held))

    def _emit(self, data: bytes) -> None:
        """Send on; head and first bytes, and last bytes and end, are one write each."""
        connection, ended = self._connection, self._exchange.ended
        if self._held is not None:
            self._held.append(data)
        elif self.first_at is not None:
            if ended:
                connection.finish(data)
            else:
                connection.write(data)
        elif data or ended:
            self.first_at = time.perf_counter()
            connection.start(self._exchange.status, self._exchange.content_type, self._headers, data, last=ended)
