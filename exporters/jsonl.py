"""A JSONL file that never makes its writer wait."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import deque
from pathlib import Path  # noqa: TC003 - public signatures are resolved at run time by docs and tests
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdiag.events import KvEvent, TurnRecord

log = logging.getLogger("kvdiag.exporters")
QUEUE_LIMIT: Final = 10_000
BATCH_S: Final = 0.05
"""How long records gather: each time the thread wakes up it takes the interpreter from whoever serves."""


class JsonlSink:
    """Appends records to a file from a thread of its own.

    A full queue, a full disk or a path that cannot be opened drops the record and calls `on_drop`; nothing is raised. That
    a file cannot be written is logged, when it is first seen (at the start already), and again when it is over.
    The file is rotated to `<path>.1`, `.2`, ... (1 is the newest) when it grows past `max_bytes`.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_drop: Callable[[], None],
        max_bytes: int = 64 << 20,
        keep: int = 4,
        queue_limit: int = QUEUE_LIMIT,
    ) -> None:
        self.path = path
        self._on_drop = on_drop
        self._max_bytes = max_bytes
        self._keep = keep
        self._limit = queue_limit
        self._queue: deque[TurnRecord | KvEvent] = deque()
        self._failing = False
        self._filled = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvdiag-jsonl", daemon=True)
        self._thread.start()

    def write(self, record: TurnRecord | KvEvent) -> None:
        """Queue a record; never blocks, never raises."""
        if len(self._queue) >= self._limit:
            self._on_drop()
            return
        self._queue.append(record)
        if not self._filled.is_set():
            self._filled.set()

    def close(self, timeout: float = 5.0) -> None:
        """Write what is queued, then stop the thread; gives up after `timeout` seconds on a disk that hangs."""
        self._closing.set()
        self._filled.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        encoder = msgspec.json.Encoder()
        self._try(b"")
        while True:
            self._filled.wait()
            closing = self._closing.wait(BATCH_S)
            self._filled.clear()  # before the queue is emptied: what comes later wakes us again
            records = [self._queue.popleft() for _ in range(len(self._queue))]
            if records and not self._try(b"".join(encoder.encode(record) + b"\n" for record in records)):
                for _ in records:
                    self._on_drop()
            if closing and not self._queue:
                return

    def _try(self, data: bytes) -> bool:
        """Append; return False where that is not possible just now."""
        try:
            self._append(data)
        except OSError as error:
            if not self._failing:
                log.warning("cannot write %s: %s; records are dropped and counted", self.path, error.strerror or error)
            self._failing = True
            return False
        if self._failing:
            log.warning("%s can be written again", self.path)
        self._failing = False
        return True

    def _append(self, data: bytes) -> None:
        with self.path.open("ab", buffering=0) as file:
            start = file.tell()
            if file.write(data) != len(data):
                file.truncate(start)  # half a line would spoil the next one too
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if start + len(data) > self._max_bytes:
            self._rotate()

    def _rotate(self) -> None:
        for number in range(self._keep - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                older.rename(self._numbered(number + 1))
        self.path.rename(self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
