"""The real OpenAI client, as agents use it."""

from __future__ import annotations

import asyncio

import openai
import pytest
from tests.router.harness import Act, Stack, chunk, run, running, sse


def client(stack: Stack) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{stack.router.port}/v1", api_key="k", max_retries=0)


def test_chats_streamed_and_not_are_linked_by_history_alone() -> None:
    async def scenario() -> None:
        async with running() as stack, client(stack) as api:
            history: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
            whole = await api.chat.completions.create(model="m", messages=history)
            answer = whole.choices[0].message.content
            assert answer == "Hello there"
            assert not (whole.model_extra or {}).keys() & {"kv_transfer_params", "kvdiag"}
            history += [{"role": "assistant", "content": answer}, {"role": "user", "content": "more"}]
            stream = await api.chat.completions.create(model="m", messages=history, stream=True)
            pieces = [event.choices[0].delta.content or "" async for event in stream if event.choices]
            assert "".join(pieces) == "Hello there"
            assert [r.lookup for r in stack.records] == ["first_turn", "hit"]

    run(scenario())


def test_tool_calls_reasoning_and_usage_pass_unchanged() -> None:
    async def scenario() -> None:
        async with running() as stack, client(stack) as api:
            function = {"name": "look", "arguments": '{"q":1}'}
            call = {"index": 0, "id": "t1", "type": "function", "function": function}
            usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
            events = [
                chunk({"role": "assistant", "reasoning_content": "hm"}),
                chunk({"tool_calls": [call]}),
                chunk({}, "tool_calls", kv_transfer_params=stack.decode.handle()),
                {**chunk({}), "choices": [], "usage": usage},
            ]
            stack.decode.acts.append(Act(events=[sse(event) for event in events] + [b"data: [DONE]\n\n"]))
            stream = await api.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "hi"}],
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"session_id": "s"},
            )
            seen = [event async for event in stream]
            assert seen[0].choices[0].delta.model_extra == {"reasoning_content": "hm"}
            calls = seen[1].choices[0].delta.tool_calls
            assert calls is not None
            assert calls[0].function is not None
            assert calls[0].function.arguments == '{"q":1}'
            assert not (seen[2].model_extra or {}).get("kv_transfer_params")
            assert seen[3].usage is not None
            assert seen[3].usage.total_tokens == 11
            await api.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], extra_body={"session_id": "s"}
            )
            assert stack.records[1].lookup == "hit"

    run(scenario())


def test_errors_become_the_clients_exceptions() -> None:
    async def scenario() -> None:
        async with running() as stack, client(stack) as api:
            messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
            stack.prefill.acts.append(Act(status=400))
            with pytest.raises(openai.BadRequestError, match="engine says no"):
                await api.chat.completions.create(model="m", messages=messages)
            stack.prefill.acts.append(Act(status=429))
            with pytest.raises(openai.RateLimitError):
                await api.chat.completions.create(model="m", messages=messages)
            stack.decode.acts.append(Act(drop_after=2))
            stream = await api.chat.completions.create(model="m", messages=messages, stream=True)
            with pytest.raises(openai.APIError, match="the engine ended the stream early"):
                async for _ in stream:
                    pass
            await stack.prefill.stop()
            with pytest.raises(openai.InternalServerError, match="could not be reached"):
                await api.chat.completions.create(model="m", messages=messages)

    run(scenario())


def test_models_and_legacy_completions_work() -> None:
    async def scenario() -> None:
        async with running() as stack, client(stack) as api:
            stack.decode.pages["/v1/models"] = (
                '{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"v"}]}'
            )
            assert [model.id async for model in api.models.list()] == ["m"]
            choice = {"index": 0, "text": "out", "finish_reason": "stop", "logprobs": None}
            answer = {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
            stack.decode.acts.append(Act(body={**answer, "kv_transfer_params": stack.decode.handle()}))
            completion = await api.completions.create(model="m", prompt="a", extra_headers={"X-Session-ID": "s"})
            assert completion.choices[0].text == "out"
            await asyncio.sleep(0)
            assert stack.records[0].lookup == "first_turn"

    run(scenario())
