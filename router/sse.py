"""Server-sent events as bytes: passed through untouched, save the one event that carries a handle."""

from __future__ import annotations

from typing import Final

from kvdiag.router.answers import take_handle

MARKER: Final = b'"kv_transfer_params"'
"""A quote inside a JSON string is escaped, so that this cannot be part of a text."""
EVENT_LIMIT: Final = 16 << 20
"""Bytes of one event."""


class EventFilter:
    """Splits a stream at event boundaries and takes the handle out.

    What `feed` returns can be forwarded at once. An event is forwarded whole or not at all, since its end may
    hold the handle.
    """

    __slots__ = ("_expose", "_tail", "handle")

    def __init__(self, *, expose: bool = False) -> None:
        self._expose = expose
        self._tail = b""
        self.handle: bytes | None = None

    def feed(self, data: bytes) -> bytes:
        """Return the events that are complete, without handles.

        Raises:
            ValueError: one event is larger than `EVENT_LIMIT`.

        """
        if self._tail:
            data = self._tail + data
        if data.endswith(b"\n\n"):
            self._tail = b""
        else:
            cut = _last_boundary(data)
            data, self._tail = data[:cut], data[cut:]
            if len(self._tail) > EVENT_LIMIT:
                raise ValueError(f"an event of more than {EVENT_LIMIT} bytes")
        return self._cleaned(data)

    def close(self) -> bytes:
        """Return what is left when the stream ends without a boundary."""
        tail, self._tail = self._tail, b""
        return self._cleaned(tail)

    def _cleaned(self, data: bytes) -> bytes:
        """Rewrite only the lines that hold the marker."""
        at = data.find(MARKER)
        while at >= 0:
            start = data.rfind(b"\n", 0, at) + 1
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            line = self._clean(data[start:end])
            data = data[:start] + line + data[end:]
            at = data.find(MARKER, start + len(line))
        return data

    def _clean(self, line: bytes) -> bytes:
        if not line.startswith(b"data:"):
            return line
        end = b"\r" if line.endswith(b"\r") else b""
        payload, handle = take_handle(line[5:].strip())
        self.handle = handle or self.handle
        return line if self._expose else b"data: " + payload + end


def _last_boundary(data: bytes) -> int:
    """Return the length up to the end of the last event: an empty line, with either line ending."""
    lf, crlf = data.rfind(b"\n\n"), data.rfind(b"\r\n\r\n")
    return max(lf + 2 if lf >= 0 else 0, crlf + 4 if crlf >= 0 else 0)
