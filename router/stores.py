"""Where handles are kept between turns: the protocol and the in-process store."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class Entry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the router knows of a conversation between two turns."""

    turn: int = 0
    """Turns answered so far; 0 where another request holds the entry just now."""
    conversation: str | None = None
    ended_at: float = 0.0
    """Seconds since the epoch: replicas share entries."""
    state: str = "consumed"
    """"issued", or the look-up result that the next turn gets."""
    handle: bytes | None = None
    """Decode's `kv_transfer_params`, its `kvdiag` key apart."""
    context: bytes | None = None
    """What was under that key."""
    engine_id: str | None = None
    tokens: int = 0
    """Tokens held on decode."""
    prefill: str | None = None
    decode: str | None = None
    prompt_tokens: int | None = None
    history: bytes | None = None
    """Digest of the history that decode's tokens begin with, and its length."""
    history_bytes: int = 0

    @property
    def size(self) -> int:
        """Bytes, roughly: what the store's bound counts."""
        return 512 + len(self.handle or b"") + len(self.context or b"")


CLAIMED = Entry()
"""Left in place of a claimed entry: forks and retries find it and know that the handle is gone."""


class Store(Protocol):
    """Two writes and a claim. A store that fails raises nothing: it answers None and counts.

    A write begins when it is called, whether or not what it returns is awaited.
    """

    async def ready(self) -> None:
        """Return once the store was reached, or was found not to be reachable."""
        ...

    async def claim(self, key: bytes) -> Entry | None:
        """Take the entry and leave `CLAIMED`, as one atomic step."""
        ...

    def put(self, key: bytes, entry: Entry) -> asyncio.Future[None] | None:
        """Keep an entry; what is returned, if anything, is done once every replica can see it."""
        ...

    def drop(self, key: bytes) -> asyncio.Future[None] | None:
        """Forget a conversation."""
        ...

    async def close(self) -> None:
        """Let connections go."""
        ...


class MemoryStore:
    """Entries of this process, bounded by number and bytes; the longest unused goes first."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        max_entries: int,
        max_bytes: int,
        ttl_s: float,
        on_evict: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._on_evict = on_evict
        self._entries: OrderedDict[bytes, tuple[Entry, float]] = OrderedDict()
        self._bytes = 0

    async def ready(self) -> None:
        """Nothing to wait for."""

    async def claim(self, key: bytes) -> Entry | None:
        """Take the entry and leave `CLAIMED`; nothing else runs in between."""
        found = self._pop(key)
        self.put(key, CLAIMED)
        if found is None or found[1] < self._clock():
            return None
        return found[0]

    def put(self, key: bytes, entry: Entry) -> None:
        """Keep an entry."""
        self._pop(key)
        self._entries[key] = entry, self._clock() + self._ttl_s
        self._bytes += entry.size
        while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
            self._evict()

    def drop(self, key: bytes) -> None:
        """Forget a conversation."""
        self._pop(key)

    def __len__(self) -> int:
        return len(self._entries)

    async def close(self) -> None:
        """Nothing to let go."""

    def _pop(self, key: bytes) -> tuple[Entry, float] | None:
        found = self._entries.pop(key, None)
        if found is not None:
            self._bytes -= found[0].size
        return found

    def _evict(self) -> None:
        _, (entry, expires) = self._entries.popitem(last=False)
        self._bytes -= entry.size
        if expires > self._clock():
            self._on_evict()
