"""A store that must be waited for: nothing after the handle reaches the client before the write is done."""

from __future__ import annotations

import asyncio

import pytest
from tests.router.harness import Act, chunk, run, running, sse


@pytest.mark.parametrize("when", ["at once", "at the end of the stream", "later"])
def test_the_end_of_a_stream_waits_for_the_store(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running() as stack:
            loop = asyncio.get_running_loop()
            store = stack.router.services.ledger._store
            put = store.put
            kept: list[asyncio.Future[None]] = []

            def slow(key: bytes, entry: object) -> asyncio.Future[None]:
                put(key, entry)  # type: ignore[arg-type]
                kept.append(loop.create_future())
                if when == "at once":
                    kept[-1].set_result(None)
                elif when == "at the end of the stream":
                    loop.call_soon(kept[-1].set_result, None)
                else:
                    loop.call_later(0.05, kept[-1].set_result, None)
                return kept[-1]

            monkeypatch.setattr(store, "put", slow)
            for n in range(20):
                kept.clear()
                reply = await stack.chat("hi", stream=True, conversation=f"c{n}")
                assert reply.text == "Hello there"
                assert reply.body.endswith(b"data: [DONE]\n\n")
                assert reply.body.count(b"data: ") == 6
                assert kept[-1].done()

    run(scenario())


def test_an_answer_whose_handle_is_kept_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(decodes=2) as stack:
            loop = asyncio.get_running_loop()
            kept: asyncio.Future[None] = loop.create_future()
            monkeypatch.setattr(stack.router.services.ledger._store, "put", lambda *_: kept)
            events = [sse(chunk({"content": "Hello there"}, "stop", kv_transfer_params=stack.decode.handle()))]
            for decode in stack.decodes:
                decode.acts.append(Act(events=[*events, b"data: [DONE]\n\n"], drop_after=1))
            reply = await stack.chat("hi", stream=True)
            kept.set_result(None)
            await asyncio.sleep(0)
            assert reply.body.startswith(events[0][:20])
            assert b"the engine ended the stream early" in reply.body
            assert sum(len(decode.turns) for decode in stack.decodes) == 1

    run(scenario())


def test_a_client_that_leaves_while_the_store_is_slow_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running() as stack:
            loop = asyncio.get_running_loop()
            store = stack.router.services.ledger._store
            monkeypatch.setattr(store, "put", lambda *_: loop.create_future())
            stack.decode.acts.append(Act(pace_s=0.02))
            client = await stack.connect()
            body = b'{"model":"m","messages":[],"stream":true}'
            head = b"POST /v1/chat/completions HTTP/1.1\r\nx-session-id: a\r\ncontent-length: %d\r\n\r\n" % len(body)
            await client.send(head + body)
            await client.read_head()
            client.close()
            while not stack.records:  # noqa: ASYNC110 - any turn
                await asyncio.sleep(0.005)
            assert stack.records[0].cause == "client"
            monkeypatch.undo()
            assert (await stack.chat("hi")).status == 200

    run(scenario())
