"""The chunk that ends a choice carries the handle; every other byte of the stream stays as it was."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from kvdiag.connector import streaming

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HANDLE = {"remote_block_ids": [[1, 2]], "note": 'ä "}\n\n'}
TEXT = 'data: {"choices":[{"index":0,"delta":{"content":"finish_reason"},"finish_reason":null}]}\n\n'
LAST = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = 'data: {"choices":[],"usage":{"total_tokens":3}}\n\n'
DONE = "data: [DONE]\n\n"


@dataclass
class Output:
    kv_transfer_params: dict[str, Any] | None = None


@dataclass
class Asked:
    kv_transfer_params: dict[str, Any] | None


class Server:
    """Streams as vLLM's generator methods do: one chunk an output, then the tail."""

    async def generate(self, request: Asked, result_generator: AsyncIterator[Output], name: str) -> AsyncIterator[str]:
        async for output in result_generator:
            yield LAST if output.kv_transfer_params or name == "stock" else TEXT
        yield USAGE
        yield DONE


async def outputs(*handles: dict[str, Any] | None) -> AsyncIterator[Output]:
    for handle in handles:
        yield Output(handle)


def stream(server: Any, request: Asked, *handles: dict[str, Any] | None) -> list[str]:  # noqa: ANN401 - patched
    async def collect() -> list[str]:
        return [chunk async for chunk in server.generate(request, outputs(*handles), name="x")]

    return asyncio.run(collect())


@pytest.fixture
def server() -> Server:
    class Patched(Server):
        pass

    streaming._wrap(Patched, "generate", "result_generator", lambda output: output)
    return Patched()


def test_the_last_chunk_carries_the_handle(server: Server) -> None:
    chunks = stream(server, Asked({"do_remote_prefill": True}), None, HANDLE)
    assert [chunks[0], chunks[2], chunks[3]] == [TEXT, USAGE, DONE]
    assert json.loads(chunks[1].removeprefix("data: "))["kv_transfer_params"] == HANDLE
    assert chunks[1].startswith(LAST.removesuffix("}\n\n"))


def test_requests_without_params_are_streamed_untouched(server: Server) -> None:
    assert stream(server, Asked(None), None, HANDLE) == [TEXT, LAST, USAGE, DONE]


def test_an_answer_without_a_handle_is_streamed_untouched(server: Server) -> None:
    assert stream(server, Asked({"do_remote_prefill": True}), None, None) == [TEXT, TEXT, USAGE, DONE]


def test_patching_twice_adds_the_handle_once(server: Server) -> None:
    streaming._wrap(type(server), "generate", "result_generator", lambda output: output)
    chunks = stream(server, Asked({"x": 1}), HANDLE)
    assert chunks[0].count("kv_transfer_params") == 1


@pytest.mark.parametrize(
    "chunk",
    [
        DONE,
        USAGE,
        TEXT,
        "",
        "data: {broken\n\n",
        ": comment\n\n",
        'data: {"choices":7,"finish_reason":"x"}\n\n',
        'data: {"error":"finish_reason"}\n\n',
    ],
)
def test_chunks_that_end_no_choice_stay_as_they_are(chunk: str) -> None:
    assert streaming.add_handle(chunk, HANDLE) == chunk


def test_another_signature_is_refused() -> None:
    class Other:
        async def generate(self, prompt: str) -> AsyncIterator[str]:
            yield prompt

    with pytest.raises(TypeError, match="generate takes"):
        streaming._wrap(Other, "generate", "result_generator", lambda output: output)
