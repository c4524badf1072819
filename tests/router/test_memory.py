from __future__ import annotations

import asyncio
import json
import tracemalloc

from tests.router.test_ledger import HANDLE, Book

from kvdiag.router.bodies import APIS, Body
from kvdiag.router.identity import Identifier
from kvdiag.router.stores import Entry


def test_memory_stays_flat_over_many_turns_of_many_conversations() -> None:
    """What the first rounds of turns need is what the last ones need; benchmarks/soak asks a whole process."""
    book = Book()
    store = book.ledger._store
    store._max_entries, store._max_bytes = 100_000, 1 << 30  # type: ignore[attr-defined]
    by = Identifier(b"s", derive=True)
    handle = json.dumps(HANDLE).encode()
    body = Body.parse(APIS["/v1/chat/completions"], b'{"model":"m","messages":[{"role":"user","content":"hi"}]}')

    async def rounds(count: int) -> None:
        for turn in range(count):
            for conversation in range(2_000):
                identity = by.identify({b"x-session-id": b"%d" % conversation}, body)
                claim = await book.ledger.claim(identity)
                assert claim.hit or turn == 0
                book.ledger.commit(identity, None, Entry(turn=claim.turn, decode="d"), bytes(bytearray(handle)))

    asyncio.run(rounds(1))
    tracemalloc.start()
    asyncio.run(rounds(2))
    before, _ = tracemalloc.get_traced_memory()
    asyncio.run(rounds(2))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after < before * 1.02
