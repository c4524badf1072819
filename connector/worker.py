"""A worker's side: what became of each read on this rank, and how blocks held for others were let go.

Plain data only, as on the scheduler's side; `kvdiag.connector.upstream` calls it from vLLM's worker. Handshakes run in
a thread of their own, everything else in the worker's.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvdiag.connector.outbox import Outbox

NOTE: Final = b"KVDIAG:"
"""Starts a notification to which the reader has added how it uses the handle, for engines that said they understand."""
_END: Final = b"\n"
GIVEN_UP: Final = "kvdiag-given-up:"
"""Starts the id under which upstream goes on to follow a read that its request no longer waits for."""
_HOWS: Final = ("read", "notified")
MEMORY: Final = 4096
_Value = TypeVar("_Value")
Failure = tuple[str, str | None]


class Telemetry(Protocol):
    """What NIXL measured for one transfer; microseconds and bytes."""

    xferDuration: float  # noqa: N815 - NIXL's names
    postDuration: float  # noqa: N815
    totalBytes: int  # noqa: N815
    descCount: int  # noqa: N815


def annotate(message: bytes, how: str, reader: str) -> bytes:
    """Return upstream's notification with the use of the handle, "read" or "notified", and the reader's request id."""
    return NOTE + msgspec.json.encode((how, reader)) + _END + message


def failure_of(error: BaseException) -> Failure:
    """Return the cause behind a handshake's exception."""
    text = str(error)
    if "engine ID mismatch" in text:
        return "peer_unreachable", "restarted"
    if (
        isinstance(error, AssertionError | NotImplementedError | ValueError)
        or "compatibility" in text
        or "decode" in text
    ):
        return "peer_unreachable", "incompatible"
    return "peer_unreachable", "handshake_failed"


def _remember(memory: OrderedDict[str, _Value], key: str, value: _Value) -> None:
    memory[key] = value
    if len(memory) > MEMORY:
        memory.popitem(last=False)


class WorkerSide:
    """One per rank."""

    def __init__(
        self,
        outbox: Outbox,
        *,
        leads: bool,
        read_timeout_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outbox = outbox
        self._leads = leads
        """Reports what every rank sees alike."""
        self._read_timeout_s = read_timeout_s
        self._clock = clock
        self._since: dict[str, float] = {}
        self._engines: OrderedDict[str, str] = OrderedDict()
        self._failures: dict[str, Failure] = {}
        self._broken: dict[str, Failure] = {}
        self._moved: dict[str, tuple[int, float, float, int]] = {}
        self._told: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._notes: OrderedDict[str, str] = OrderedDict()
        self._messages: Counter[str] = Counter()
        self._readers: dict[str, int] = {}
        self._notified: set[str] = set()

    # Reads from other engines.

    def keep_notes(self, notes: dict[str, str]) -> None:
        """Keep, by request, how the reads that are about to be queued use their handles."""
        for request_id, how in notes.items():
            _remember(self._notes, request_id, how)

    def annotated(self, request_id: str, message: bytes) -> bytes:
        """Return a read's notification with a note on who reads, or as it is for a holder that would not understand."""
        how = self._notes.get(request_id)
        return message if how is None else annotate(message, how, request_id)

    def reading(self, request_id: str, engine_id: str) -> None:
        """Note that a read is about to be queued, or its handshake to be started."""
        _remember(self._engines, request_id, engine_id)

    def forget(self, request_id: str) -> None:
        """Drop a request that upstream will not report: it only told the holder to let go."""
        for memory in (self._engines, self._failures, self._moved, self._notes):
            memory.pop(request_id, None)

    def failing(self, request_id: str, cause: str, detail: str | None = None) -> None:
        """Note why a read will be reported as failed; the first reason given is the reason."""
        broken = self._broken.get(self._engines.get(request_id, ""))
        self._failures.setdefault(request_id, broken or (cause, detail))

    def moved(self, request_id: str, measured: Telemetry | None) -> None:
        """Add a transfer that has arrived; a request that reads from several ranks has several."""
        if measured is None:
            return
        size, seconds, post, count = self._moved.get(request_id, (0, 0.0, 0.0, 0))
        self._moved[request_id] = (
            size + int(measured.totalBytes),
            max(seconds, measured.xferDuration / 1e6),
            max(post, measured.postDuration / 1e6),
            count + int(measured.descCount),
        )

    def overdue(self, in_flight: Iterable[str]) -> list[str]:
        """Return which of the reads in flight have been so for too long. Empty while their end could not be reported."""
        if not self._read_timeout_s or not self._outbox.has_room:
            return []
        now = self._clock()
        self._since = {name: self._since.get(name, now) for name in in_flight if not name.startswith(GIVEN_UP)}
        return [name for name, since in self._since.items() if now - since > self._read_timeout_s]

    def give_up(self, request_id: str) -> str:
        """Note that a request stops to wait for its read; return the id under which the read is followed."""
        self.failing(request_id, "transfer_failed", "stalled")
        self._outbox.put("stalled", request_id)
        return GIVEN_UP + request_id

    def settle(self, request_ids: set[str]) -> None:
        """Take out of the requests whose reads are over the ones that had been given up."""
        for name in [name for name in request_ids if name.startswith(GIVEN_UP)]:
            request_ids.discard(name)
            self.forget(name)
            self._outbox.put("settled", name.removeprefix(GIVEN_UP))

    def handshaken(self, engine_id: str, seconds: float, failure: Failure | None) -> None:
        """Note how a handshake has ended."""
        if failure is None:
            self._broken.pop(engine_id, None)
        elif len(self._broken) < MEMORY:
            self._broken[engine_id] = failure
        if self._leads:
            cause, detail = failure or (None, None)
            self._outbox.put("handshake", engine_id, seconds, cause, detail)

    def received(self, request_ids: Iterable[str]) -> None:
        """Tell how reads ended that are over on this rank."""
        for request_id in request_ids:
            engine_id = self._engines.get(request_id)
            moved = self._moved.get(request_id)
            failure = self._failures.get(request_id)
            if failure is None and moved is None:
                failure = self._broken.get(engine_id or "")
            if failure is not None:
                self._outbox.put("failed", request_id, *failure, engine_id)
            elif moved is not None:
                self._outbox.put("moved", request_id, *moved)
            self.forget(request_id)

    # Blocks held for other engines.

    def sift(self, messages: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
        """Return NIXL's notifications without what readers have added, and keep what both say."""
        return {
            agent: [plain for message in batch if (plain := self._take(message))] for agent, batch in messages.items()
        }

    def _take(self, message: bytes) -> bytes:
        note, end, plain = message.partition(_END) if message.startswith(NOTE) else (b"", b"", message)
        if plain.startswith(b"HB:"):
            return plain
        request_id, _, readers = plain.decode("utf-8", "replace").rpartition(":")
        if end:
            self._keep(request_id, note[len(NOTE) :])
        self._messages[request_id] += 1
        self._readers[request_id] = int(readers) if readers.isdecimal() else 1
        return plain

    def _keep(self, request_id: str, note: bytes) -> None:
        try:
            how, reader = msgspec.json.decode(note, type=tuple[str, str])
        except msgspec.DecodeError:
            return
        if how in _HOWS:
            _remember(self._told, request_id, (how, reader))

    def notified(self, request_ids: Iterable[str], held: Callable[[str], bool]) -> None:
        """Judge the notifications that upstream has dealt with: these requests are read by all their readers.

        `held` tells whether a request's blocks are still held.
        """
        self._notified = set(request_ids)
        messages, self._messages = self._messages, Counter()
        readers, self._readers = self._readers, {}
        for request_id, count in messages.items():
            late = count > readers[request_id] if request_id in self._notified else not held(request_id)
            if late and self._leads:
                self._outbox.put("suspect", request_id, self._told.get(request_id, (None, None))[1])

    def let_go(self, request_ids: Iterable[str]) -> None:
        """Tell how blocks came free on this rank: those of requests that nobody asked for have expired."""
        for request_id in request_ids:
            how = self._told.get(request_id, ("read", ""))[0] if request_id in self._notified else "expired"
            self._outbox.put("released", request_id, how)
        self._notified = set()
