"""Requests out of a client's bytes: an httptools parser with a bound on everything."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import httptools
import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may take. Sizes are bytes, times seconds."""

    head: int = 64 << 10
    """Request line and headers."""
    body: int = 64 << 20
    """Request body."""
    head_s: float = 10.0
    """From the first byte of a request to the end of its head."""
    body_s: float = 60.0
    """From the end of the head to the end of the body."""
    idle_s: float = 120.0
    """Between requests."""
    drain_s: float = 120.0
    """How long a client may leave an answer unread while the router waits to write more."""
    connections: int = 10_000
    """Client connections at once."""


class Request(msgspec.Struct):
    """One complete request. Header names are lower case; of repeated headers the first counts."""

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    body: bytes
    keep_alive: bool
    chunked: bool
    """Whether the client understands chunked answers (HTTP/1.1)."""
    received_at: float
    """When the request was complete, by `time.perf_counter`."""

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition(b"?")[0].decode("latin-1")


class Phase(Enum):
    """What an intake waits for."""

    REQUEST = "request"
    HEAD = "head"
    BODY = "body"
    REFUSED = "refused"


class Intake:
    """Feeds bytes to the parser and hands over complete requests, or the status that refuses them."""

    def __init__(
        self,
        limits: Limits,
        *,
        deliver: Callable[[Request], None],
        refuse: Callable[[int], None],
        invite: Callable[[], None],
    ) -> None:
        self.phase = Phase.REQUEST
        self._limits = limits
        self._deliver = deliver
        self._refuse = refuse
        self._invite = invite
        self._parser = httptools.HttpRequestParser(self)
        self._target: list[bytes] = []
        self._headers: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Parse; what is not HTTP/1 is refused, an offer to upgrade is not taken up."""
        if self.phase is Phase.REFUSED:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parser = httptools.HttpRequestParser(self)
            self.feed(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._end(400)

    def _end(self, status: int) -> None:
        if self.phase is not Phase.REFUSED:
            self.phase = Phase.REFUSED
            self._parts.clear()
            self._refuse(status)

    # What the parser calls.

    def on_message_begin(self) -> None:
        """Start a request."""
        if self.phase is Phase.REFUSED:
            return
        self.phase = Phase.HEAD
        self._target, self._headers, self._parts, self._size = [], {}, [], 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self._target.append(url)
        self._size += len(url)
        if self._size > self._limits.head:
            self._end(431)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; a trailer, which would come too late for what headers decide, is only counted."""
        if self.phase is Phase.HEAD:
            self._headers.setdefault(name.lower(), value)
        self._size += len(name) + len(value) + 4
        if self._size > self._limits.head:
            self._end(431)

    def on_headers_complete(self) -> None:
        """Refuse a body that is announced as too large before it is sent."""
        if self.phase is Phase.REFUSED:
            return
        self.phase = Phase.BODY
        self._size = 0
        if self._parser.should_upgrade() and (
            b"content-length" in self._headers or b"transfer-encoding" in self._headers
        ):
            self._end(400)  # the parser takes the body for another protocol's bytes
        elif int(self._headers.get(b"content-length", b"0")) > self._limits.body:
            self._end(413)
        elif self._headers.get(b"expect", b"").lower() == b"100-continue":
            self._invite()

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        self._size += len(data)
        if self._size > self._limits.body:
            self._end(413)
        elif self.phase is Phase.BODY:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        """Hand the request over."""
        if self.phase is Phase.REFUSED:
            return
        self.phase = Phase.REQUEST
        parts, self._parts = self._parts, []
        self._deliver(
            Request(
                method=self._parser.get_method(),
                target=b"".join(self._target),
                headers=self._headers,
                body=parts[0] if len(parts) == 1 else b"".join(parts),
                keep_alive=self._parser.should_keep_alive(),
                chunked=self._parser.get_http_version() == "1.1",
                received_at=time.perf_counter(),
            )
        )
