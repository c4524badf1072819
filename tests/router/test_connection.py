"""What clients can do to the server, over real sockets."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from tests.router.harness import Act, Stack, chunk, post, run, running, sse, until

from kvdiag.router import records
from kvdiag.router.connection import PIPELINE_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdiag.router.settings import Settings

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def limited(**limits: Any) -> Callable[[Settings], Settings]:  # noqa: ANN401 - any limit
    return lambda settings: dataclasses.replace(settings, limits=dataclasses.replace(settings.limits, **limits))


def expire(stack: Stack) -> None:
    """Let every deadline pass without waiting for it."""
    for peer in list(stack.router.peers):
        peer.expire(peer.deadline)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"GET /health HTTP/1.1\r\nx: ", b"408 "),
        (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 10\r\n\r\n{", b"408 "),
        (b"", b""),
    ],
)
def test_a_client_that_dribbles_is_ended(sent: bytes, answer: bytes) -> None:
    async def scenario() -> None:
        async with running() as stack:
            client = await stack.connect()
            await client.send(sent)
            await asyncio.sleep(0.05)
            assert all(peer.deadline < float("inf") for peer in stack.router.peers)
            expire(stack)
            assert (await client.reader.read(13)).startswith(b"HTTP/1.1 " + answer if answer else b"")
            expire(stack)
            await until(lambda: not stack.router.peers)
            client.close()

    run(scenario())


def test_the_sweep_ends_what_is_overdue() -> None:
    async def scenario() -> None:
        async with running(change=limited(head_s=0.01)) as stack:
            client = await stack.connect()
            await client.send(b"GET / HTTP/1.1\r\n")
            assert (await client.reader.read(100)).startswith(b"HTTP/1.1 408")
            client.close()

    run(scenario())


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (post("/v1/chat/completions", b"{" * 100_000), 400),
        (post("/v1/chat/completions", b"[1]"), 400),
        (post("/v1/chat/completions", b"\xff\xfe"), 400),
        (post("/v1/chat/completions", b""), 400),
        (post("/v1/chat/completions", b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"), 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 99999999\r\n\r\n", 413),
        (b"GET /v1/nothing HTTP/1.1\r\n\r\n", 404),
        (b"DELETE /v1/models HTTP/1.1\r\n\r\n", 404),
        (b"POST /reset_prefix_cache HTTP/1.1\r\ncontent-length: 0\r\n\r\n", 404),
        (b"GET /../v1/models HTTP/1.1\r\n\r\n", 404),
    ],
)
def test_bad_requests_get_an_openai_shaped_error_and_reach_no_engine(data: bytes, status: int) -> None:
    async def scenario() -> None:
        async with running() as stack:
            client = await stack.connect()
            await client.send(data)
            reply = await client.reply()
            assert reply.status == status
            assert reply.json()["error"]["code"] == status
            assert not stack.prefill.turns
            assert not stack.decode.turns
            client.close()

    run(scenario())


def test_bad_utf8_in_a_message_is_the_engines_to_judge() -> None:
    async def scenario() -> None:
        async with running() as stack:
            stack.prefill.acts.append(Act(status=400))
            body = b'{"model":"m","messages":[{"role":"assistant","content":"\xff"}],"x":"ok"}'
            client = await stack.connect()
            await client.send(post("/v1/chat/completions", body))
            assert (await client.reply()).status == 400
            client.close()

    run(scenario())


def test_headers_cannot_be_injected_through_ids() -> None:
    async def scenario() -> None:
        async with running() as stack:
            reply = await stack.post("/v1/chat/completions", CHAT, x_request_id="a b;c")
            assert reply.headers["x-request-id"] != "a b;c"
            reply = await stack.post("/v1/chat/completions", CHAT, x_request_id="mine-1", x_evil="1")
            assert reply.headers["x-request-id"] == "mine-1"
            assert stack.decode.turns[1].headers["x-request-id"] == "mine-1"
            assert "x-evil" not in stack.decode.turns[1].headers

    run(scenario())


def test_equal_request_ids_do_not_mix_turns() -> None:
    async def scenario() -> None:
        async with running() as stack:
            replies = await asyncio.gather(
                *(stack.post("/v1/chat/completions", CHAT, x_request_id="same") for _ in range(8))
            )
            assert [reply.status for reply in replies] == [200] * 8
            assert len({seen.params["remote_request_id"] for seen in stack.decode.turns}) == 8

    run(scenario())


def test_pipelined_requests_are_answered_in_order_and_bounded() -> None:
    async def scenario() -> None:
        async with running() as stack:
            client = await stack.connect()
            await client.send(post("/v1/chat/completions", CHAT) + b"GET /health HTTP/1.1\r\n\r\n")
            assert (await client.reply()).text == "Hello there"
            assert (await client.reply()).json() == {"status": "ok"}
            stack.prefill.acts.append(Act(hang=True))
            await client.send(
                post("/v1/chat/completions", CHAT) + b"GET /health HTTP/1.1\r\n\r\n" * (PIPELINE_LIMIT + 1)
            )
            assert await client.reader.read() == b""
            client.close()

    run(scenario())


def test_http_1_0_gets_an_unchunked_stream_and_the_end() -> None:
    async def scenario() -> None:
        async with running() as stack:
            client = await stack.connect()
            request = post("/v1/chat/completions", {**CHAT, "stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0")
            await client.send(request)
            reply = await client.reply()
            assert "transfer-encoding" not in reply.headers
            assert reply.text == "Hello there"
            client.close()

    run(scenario())


def test_a_large_body_is_invited_first() -> None:
    async def scenario() -> None:
        async with running() as stack:
            client = await stack.connect()
            head, body = post("/v1/chat/completions", CHAT, expect="100-continue").split(b"\r\n\r\n")
            await client.send(head + b"\r\n\r\n")
            assert (await client.read_head())[0] == 100
            await client.send(body)
            assert (await client.reply()).status == 200
            client.close()

    run(scenario())


def test_more_clients_than_allowed_are_turned_away() -> None:
    async def scenario() -> None:
        async with running(change=limited(connections=1)) as stack:
            first = await stack.connect()
            await until(lambda: len(stack.router.peers) == 1)
            second = await stack.connect()
            assert await second.reader.read() == b""
            await first.send(b"GET /health HTTP/1.1\r\n\r\n")
            assert (await first.reply()).status == 200
            first.close()
            second.close()

    run(scenario())


def test_a_client_that_does_not_read_stops_the_engine_and_not_the_router() -> None:
    async def scenario() -> None:
        async with running() as stack:
            big = [sse(chunk({"content": "x" * 60_000})) for _ in range(1000)]
            stack.decode.acts.append(Act(events=[*big, b"data: [DONE]\n\n"]))
            slow = await stack.connect()
            slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await slow.send(post("/v1/chat/completions", {**CHAT, "stream": True}))
            await until(lambda: any(peer.paused for peer in stack.router.peers))
            assert (await stack.chat("hi")).status == 200
            slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert len((await slow.reply()).body) > 60_000_000
            slow.close()

    run(scenario())


def test_a_turn_that_waited_for_its_client_to_read_is_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "SLOW_CLIENT_S", 0.0)

    async def scenario() -> None:
        async with running() as stack:
            big = [sse(chunk({"content": "x" * 60_000})) for _ in range(200)]
            stack.decode.acts.append(Act(events=[*big, b"data: [DONE]\n\n"]))
            slow = await stack.connect()
            slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await slow.send(post("/v1/chat/completions", {**CHAT, "stream": True}))
            await until(lambda: any(peer.paused_s > 0.5 for peer in stack.router.peers))
            slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
            await slow.reply()
            slow.close()
            await stack.chat("hi")
            assert [(turn.cause, turn.detail) for turn in stack.records] == [("client", "slow"), ("first_turn", None)]

    run(scenario())


def test_a_client_that_never_reads_is_dropped_in_the_end() -> None:
    async def scenario() -> None:
        async with running() as stack:
            big = [sse(chunk({"content": "x" * 60_000})) for _ in range(1000)]
            stack.decode.acts.append(Act(events=big))
            stuck = await stack.connect()
            stuck.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await stuck.send(post("/v1/chat/completions", {**CHAT, "stream": True}))
            await until(lambda: any(peer.paused for peer in stack.router.peers))
            expire(stack)
            await until(lambda: bool(stack.decode.aborted))
            stuck.close()

    run(scenario())


def test_nobody_waits_for_a_task_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cancelled(*_: object) -> None:
        raise asyncio.CancelledError

    async def scenario() -> None:
        async with running() as stack:
            monkeypatch.setattr(stack.router, "handle", cancelled)
            client = await stack.connect()
            await client.send(b"GET /health HTTP/1.1\r\n\r\n" * 2)
            assert await client.reader.read() == b""

    run(scenario())
