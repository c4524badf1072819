from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from kvdiag.router.stores import CLAIMED, Entry, MemoryStore


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Counter:
    count = 0

    def __call__(self) -> None:
        self.count += 1


def made(
    clock: Clock | None = None, evicted: Counter | None = None, entries: int = 100, size: int = 1 << 20
) -> MemoryStore:
    return MemoryStore(clock or Clock(), max_entries=entries, max_bytes=size, ttl_s=10, on_evict=evicted or Counter())


def entry(handle: bytes = b"h") -> Entry:
    return Entry(turn=1, handle=handle, state="issued")


def test_an_entry_is_claimed_once() -> None:
    store = made()
    store.put(b"k", entry())
    assert asyncio.run(store.claim(b"k")) == entry()
    assert asyncio.run(store.claim(b"k")) is CLAIMED
    store.drop(b"k")
    assert asyncio.run(store.claim(b"k")) is None


def test_entries_expire() -> None:
    clock = Clock()
    store = made(clock)
    store.put(b"k", entry())
    clock.now = 10.1
    assert asyncio.run(store.claim(b"k")) is None


def test_the_longest_unused_goes_first_and_is_counted() -> None:
    evicted = Counter()
    store = made(evicted=evicted, entries=2)
    for key in (b"a", b"b", b"a", b"c"):
        store.put(key, entry())
    assert evicted.count == 1
    assert asyncio.run(store.claim(b"b")) is None
    assert evicted.count == 2
    assert len(store) == 2


def test_bytes_are_bounded_too() -> None:
    store = made(size=10_000)
    for n in range(50):
        store.put(b"%d" % n, entry(b"x" * 3000))
    assert len(store) == 2


@given(ops=st.lists(st.tuples(st.sampled_from(["put", "claim", "drop"]), st.integers(0, 5), st.integers(0, 3000))))
def test_the_size_is_always_the_sum_of_what_is_kept(ops: list[tuple[str, int, int]]) -> None:
    store = made(entries=4, size=6000)
    for name, key, size in ops:
        if name == "put":
            store.put(b"%d" % key, entry(b"x" * size))
        elif name == "drop":
            store.drop(b"%d" % key)
        else:
            asyncio.run(store.claim(b"%d" % key))
        kept = [kept.size for kept, _ in store._entries.values()]
        assert store._bytes == sum(kept) <= 6000
        assert len(kept) <= 4
