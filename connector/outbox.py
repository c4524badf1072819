"""What one process of an engine has to tell the next one, bounded.

Worker -> scheduler -> API server: each hands its items to vLLM's stats path once per step. An item is a list that
starts with its kind, of plain values only, because it crosses processes as msgpack:

    ["moved", request, bytes, transfer s, post s, descriptors]   worker: a read is complete on this rank
    ["failed", request, cause, detail, engine]                   worker: a read failed
    ["released", request, release]                               worker: blocks were let go, and why
    ["stalled", request], ["settled", request]                   worker: a read was given up, and, later, is over
    ["suspect", request, reader]                                 worker: blocks were read after they were freed
    ["handshake", engine, seconds, cause, detail]                worker: cause None where it succeeded
    ["event", {...}]                                             scheduler: fields of a KvEvent, "t" instead of "ts"
    ["cache", blocks]                                            scheduler: once, the size of the KV cache
    ["retained", requests, blocks, bytes]                        scheduler: what is held for later turns now
    ["kept", yes, no]                                            scheduler: response tokens that the next prompt kept
    ["unverified"]                                               scheduler: a read without a digest to compare with
    ["dropped", count], ["error", where]                         either
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT: Final = 4096
Item = list[Any]

_log = logging.getLogger("vllm.kvdiag.connector")
_Result = TypeVar("_Result")


class Outbox:
    """Items since the last drain; what does not fit is dropped and counted. Never blocks, never raises."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._items: deque[Item] = deque()
        self._limit = limit
        self._dropped = 0
        self._reported: set[str] = set()

    @property
    def has_room(self) -> bool:
        """Whether what is put now will not be dropped, for some more items."""
        return len(self._items) < self._limit // 2

    def put(self, *item: Any) -> None:  # noqa: ANN401 - plain values, see above
        """Add an item."""
        if len(self._items) >= self._limit:
            self._dropped += 1
            return
        self._items.append(list(item))

    def extend(self, items: list[Item]) -> None:
        """Hand on items of another process."""
        for item in items:
            self.put(*item)

    def drain(self) -> list[Item]:
        """Return and forget everything, the count of dropped items last."""
        items = [self._items.popleft() for _ in range(len(self._items))]
        if self._dropped:
            items.append(["dropped", self._dropped])
            self._dropped = 0
        return items

    def guard(self, function: Callable[..., _Result], *arguments: object) -> _Result | None:
        """Call our own code from the engine's: an exception is counted, logged once per place, and gives None."""
        try:
            return function(*arguments)
        except Exception:  # noqa: BLE001 - serving never fails because of telemetry
            where = getattr(function, "__qualname__", "?")
            self.put("error", where)
            if where not in self._reported:
                self._reported.add(where)
                _log.warning("kvdiag: %s failed; the request goes on without it", where, exc_info=True)
            return None
