"""The Messages API, as agents use it through the real Anthropic client."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import anthropic
import pytest
from tests.router.harness import Act, Json, Stack, run, running

if TYPE_CHECKING:
    from anthropic.types import MessageParam

HISTORY: list[MessageParam] = [{"role": "user", "content": "hi"}]


def client(stack: Stack) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{stack.router.port}", api_key="k", max_retries=0)


def answer(stack: Stack, text: str) -> Json:
    return {
        "id": "msg",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 9, "output_tokens": 2},
        "kv_transfer_params": stack.decode.handle(),
    }


def events(text: str) -> list[bytes]:
    start = {
        "id": "msg",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "usage": {"input_tokens": 9},
    }
    start["usage"] = {"input_tokens": 9, "output_tokens": 0}
    told: list[Json] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in told]


def test_messages_streamed_and_not_are_linked_by_history_alone() -> None:
    async def scenario() -> None:
        async with running() as stack, client(stack) as api:
            stack.decode.acts.append(Act(body=answer(stack, "Hello")))
            whole = await api.messages.create(model="m", max_tokens=9, messages=HISTORY)
            assert whole.content[0].type == "text"
            assert "kv_transfer_params" not in (whole.model_extra or {})
            history: list[MessageParam] = [*HISTORY, {"role": "assistant", "content": whole.content}]
            history.append({"role": "user", "content": "more"})
            stack.decode.acts.append(Act(events=events("Bye")))
            async with api.messages.stream(model="m", max_tokens=9, messages=history) as stream:
                assert await stream.get_final_text() == "Bye"
            history += [{"role": "assistant", "content": "Bye"}, {"role": "user", "content": "again"}]
            stack.decode.acts.append(Act(body=answer(stack, "Hello")))
            await api.messages.create(model="m", max_tokens=9, messages=history)
            assert [r.lookup for r in stack.records] == ["first_turn", "hit", "not_returned"]
            assert stack.prefill.turns[0].headers["authorization"] == "Bearer k"
            assert stack.prefill.turns[0].body["max_tokens"] == 1

    run(scenario())


def test_a_broken_stream_becomes_the_clients_exception() -> None:
    async def scenario() -> None:
        async with running() as stack, client(stack) as api:
            stack.decode.acts.append(Act(events=events("Bye"), drop_after=3))
            with pytest.raises(anthropic.APIError, match="the engine ended the stream early"):
                async with api.messages.stream(model="m", max_tokens=9, messages=HISTORY) as stream:
                    await stream.get_final_text()
            stack.prefill.acts.append(Act(status=429))
            with pytest.raises(anthropic.RateLimitError):
                await api.messages.create(model="m", max_tokens=9, messages=HISTORY)

    run(scenario())
