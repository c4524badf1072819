from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.router.harness import run

from kvdiag.router import exchange, upstream
from kvdiag.router.faults import EngineLostError, EngineTimeoutError, EngineUnreachableError
from kvdiag.router.upstream import Upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

import contextlib

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@contextlib.asynccontextmanager
async def answering(*answers: bytes, close: bool = False) -> AsyncIterator[tuple[Upstream, Callable[[], int]]]:
    """Serve each request of a connection with the next answer; tell how many connections there were."""
    left, connections = list(answers), 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while left:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(left.pop(0))
                if close:
                    break
            else:
                await reader.read()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    made = Upstream("127.0.0.1", server.sockets[0].getsockname()[1], connect_s=1)
    try:
        yield made, lambda: connections
    finally:
        made.close()
        server.close()
        await asyncio.sleep(0.01)


def whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def test_a_connection_is_used_again() -> None:
    async def scenario() -> None:
        async with answering(whole(b"1"), whole(b""), whole(b"3")) as (made, connections):
            for expected in (b"1", b"", b"3"):
                answer = await made.open(REQUEST, 1)
                assert await answer.body(1) == expected
            assert connections() == 1

    run(scenario())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\n1",
        b"HTTP/1.0 200 OK\r\n\r\n1",
        b"HTTP/1.1 200 OK\r\n\r\n1",
    ],
)
def test_an_answer_that_ends_with_the_connection_is_whole(answer: bytes) -> None:
    async def scenario() -> None:
        async with answering(answer, answer, close=True) as (made, connections):
            for _ in range(2):
                assert await (await made.open(REQUEST, 1)).body(1) == b"1"
            assert connections() == 2

    run(scenario())


def test_interim_answers_are_passed_over() -> None:
    async def scenario() -> None:
        async with answering(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + whole(b"1")) as (made, _):
            answer = await made.open(REQUEST, 1)
            assert (answer.status, await answer.body(1)) == (200, b"1")

    run(scenario())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", EngineLostError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n12", EngineLostError),
        (b"nonsense", EngineLostError),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", EngineLostError),
    ],
)
def test_a_broken_answer_is_a_loss(answer: bytes, error: type[Exception]) -> None:
    async def scenario() -> None:
        async with answering(answer, close=True) as (made, _):
            with pytest.raises(error):
                await (await made.open(REQUEST, 1)).body(1)

    run(scenario())


def test_silence_is_a_timeout_and_the_connection_is_dropped() -> None:
    async def scenario() -> None:
        async with answering(b"HTTP/1.1 200 OK\r\n", whole(b"2")) as (made, connections):
            with pytest.raises(EngineTimeoutError):
                await made.open(REQUEST, 0.05)
            assert await (await made.open(REQUEST, 1)).body(1) == b"2"
            assert connections() == 2

    run(scenario())


def test_nobody_there_is_unreachable() -> None:
    async def scenario() -> None:
        async with answering() as (made, _):
            port = made._port
        gone = Upstream("127.0.0.1", port, connect_s=1)
        with pytest.raises(EngineUnreachableError):
            await gone.open(REQUEST, 1)

    run(scenario())


def test_an_answer_without_end_is_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "ANSWER_LIMIT", 10)

    async def scenario() -> None:
        async with answering(whole(b"x" * 100)) as (made, _):
            with pytest.raises(EngineLostError, match="more than 10 bytes"):
                await (await made.open(REQUEST, 1)).body(1)

    run(scenario())


def test_a_long_idle_connection_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "IDLE_LIMIT", -1)

    async def scenario() -> None:
        async with answering(whole(b"1"), whole(b"2")) as (made, connections):
            await (await made.open(REQUEST, 1)).body(1)
            await (await made.open(REQUEST, 1)).body(1)
            assert connections() == 2

    run(scenario())
