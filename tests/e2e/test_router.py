"""The router before real engines, spoken to by the clients that applications use; nothing names the conversations."""

from __future__ import annotations

import json
import re
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anthropic
import openai
import pytest

from kvdiag.localstack.engine import MODEL_NAME
from kvdiag.localstack.process import Service, get
from kvdiag.localstack.stack import router_service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from openai.types.chat import ChatCompletionMessageParam

    from kvdiag.localstack import LocalStack

PROMPT: Final = "open the file, read the function, edit the line, run the test and report the result; " * 20
INTERNAL: Final = ("kv_transfer_params", "remote_engine_id", "kvdiag")
PATIENCE_S: Final = 60
LONG_ANSWER: Final = 4000
"""Tokens: minutes of decoding."""
TOOL: Final[Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"line": {"type": "integer"}}, "required": ["line"]},
    },
}


@dataclass
class Front:
    """A router with a turn log of its own, and the two clients."""

    service: Service
    turn_log: Path
    openai: openai.OpenAI
    anthropic: anthropic.Anthropic

    def turn(self, request_id: str) -> dict[str, Any]:
        """Return a request's turn, once it is written."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            lines = self.turn_log.read_text().splitlines() if self.turn_log.exists() else []
            for turn in map(json.loads, reversed(lines)):
                if turn["request_id"] == request_id:
                    found: dict[str, Any] = turn
                    return found
            time.sleep(0.05)
        raise AssertionError(f"no turn {request_id} within {PATIENCE_S} s")


@pytest.fixture(scope="module")
def front(stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """Start a router that derives conversations, each engine named by its data-parallel rank."""
    folder = tmp_path_factory.mktemp("front")
    service = router_service(folder, stack.prefills, stack.decodes, ())
    service.command = [f"{part}@0" if str(part).startswith("http") else part for part in service.command]
    service.start()
    try:
        service.wait_healthy(PATIENCE_S)
        with (
            openai.OpenAI(base_url=f"{service.url}/v1", api_key="k", max_retries=0) as by_openai,
            anthropic.Anthropic(base_url=service.url, api_key="k", max_retries=0) as by_anthropic,
        ):
            yield Front(service, folder / "turns.jsonl", by_openai, by_anthropic)
    finally:
        service.stop()


def named() -> tuple[str, dict[str, str]]:
    """Return a request id and the header that carries it."""
    request_id = uuid.uuid4().hex
    return request_id, {"X-Request-ID": request_id}


def private(text: str) -> str:
    """Return a text after a check that it tells nothing of handles or addresses."""
    assert not [word for word in INTERNAL if word in text]
    return text


def test_chats_link_by_their_history_and_read_back(front: Front) -> None:
    history: list[ChatCompletionMessageParam] = []
    log = []
    for turn, stream in enumerate((False, True, True, False)):
        request_id, headers = named()
        history.append({"role": "user", "content": f"{turn}: {PROMPT}"})
        text = _chat(front, history, headers, stream=stream)
        history.append({"role": "assistant", "content": text})
        log.append(front.turn(request_id))
    assert [turn["turn"] for turn in log] == [1, 2, 3, 4]
    assert [turn["lookup"] for turn in log] == ["first_turn", "hit", "hit", "hit"]
    assert [turn["cause"] for turn in log] == ["first_turn", "remote_hit", "remote_hit", "remote_hit"]
    assert len({turn["conversation"] for turn in log}) == 1


def _chat(front: Front, messages: list[ChatCompletionMessageParam], headers: dict[str, str], *, stream: bool) -> str:
    if not stream:
        answer = front.openai.chat.completions.create(
            model=MODEL_NAME, messages=messages, max_tokens=24, temperature=0, extra_headers=headers
        )
        private(answer.model_dump_json())
        return answer.choices[0].message.content or ""
    events = front.openai.chat.completions.create(
        model=MODEL_NAME, messages=messages, max_tokens=24, temperature=0, stream=True, extra_headers=headers
    )
    seen = list(events)
    private("".join(event.model_dump_json() for event in seen))
    return "".join(event.choices[0].delta.content or "" for event in seen if event.choices)


def test_branches_of_a_conversation_never_share_a_handle(front: Front) -> None:
    start: list[ChatCompletionMessageParam] = [{"role": "user", "content": f"a tree; {PROMPT}"}]
    text = _chat(front, start, {}, stream=False)
    grown: list[ChatCompletionMessageParam] = [*start, {"role": "assistant", "content": text}]
    lookups = []
    for branch in ("left", "right"):
        request_id, headers = named()
        _chat(front, [*grown, {"role": "user", "content": f"{branch}: {PROMPT}"}], headers, stream=False)
        lookups.append(front.turn(request_id)["lookup"])
    assert lookups == ["hit", "consumed"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_completions_carry_a_named_conversation(front: Front, *, stream: bool) -> None:
    prompt, log = PROMPT, []
    for _ in range(2):
        request_id, headers = named()
        answer: Any = front.openai.completions.create(
            model=MODEL_NAME,
            prompt=prompt,
            max_tokens=16,
            temperature=0,
            stream=stream,
            extra_headers={**headers, "X-Session-ID": f"completions-{stream}"},
        )
        parts = list(answer) if stream else [answer]
        private("".join(part.model_dump_json() for part in parts))
        prompt += "".join(part.choices[0].text for part in parts if part.choices) + " go on: " + PROMPT
        log.append(front.turn(request_id))
    assert [turn["lookup"] for turn in log] == ["first_turn", "hit"]
    assert log[1]["remote_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_responses_carry_a_named_conversation(front: Front, *, stream: bool) -> None:
    history: list[Any] = []
    log = []
    for turn in range(2):
        request_id, headers = named()
        history.append({"role": "user", "content": f"{turn}: {PROMPT}"})
        answer: Any = front.openai.responses.create(
            model=MODEL_NAME,
            input=history,
            max_output_tokens=16,
            stream=stream,
            extra_headers={**headers, "X-Conversation-ID": f"responses-{stream}"},
        )
        if stream:
            events = list(answer)
            private("".join(event.model_dump_json() for event in events))
            assert events[0].type == "response.created"
            answer = events[-1].response
        private(answer.model_dump_json())
        assert answer.status in {"completed", "incomplete"}
        history.append({"role": "assistant", "content": answer.output_text})
        log.append(front.turn(request_id))
    assert [turn["lookup"] for turn in log] == ["first_turn", "hit"]
    assert log[1]["remote_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_messages_are_served_and_linked(front: Front, *, stream: bool) -> None:
    history: list[Any] = []
    log = []
    for turn in range(2):
        request_id, headers = named()
        history.append({"role": "user", "content": f"{stream} {turn}: {PROMPT}"})
        arguments: Any = {"model": MODEL_NAME, "messages": history, "max_tokens": 16, "extra_headers": headers}
        if stream:
            with front.anthropic.messages.stream(**arguments) as events:
                message = events.get_final_message()
        else:
            message = front.anthropic.messages.create(**arguments)
        private(message.model_dump_json())
        history.append({"role": "assistant", "content": [block.model_dump() for block in message.content]})
        log.append(front.turn(request_id))
    assert [turn["turn"] for turn in log] == [1, 2]
    assert log[0]["conversation"] == log[1]["conversation"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_tool_call_and_logprobs_arrive(front: Front, *, stream: bool) -> None:
    answer: Any = front.openai.chat.completions.create(
        model=MODEL_NAME,
        messages=[{"role": "user", "content": PROMPT}],
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "look"}},
        logprobs=True,
        top_logprobs=2,
        max_tokens=24,
        stream=stream,
    )
    choices = [part.choices[0] for part in answer if part.choices] if stream else answer.choices
    calls = [call for c in choices for call in (c.delta if stream else c.message).tool_calls or ()]
    assert [call.function.name for call in calls if call.function.name] == ["look"]
    assert any(choice.logprobs and choice.logprobs.content for choice in choices)


def test_several_answers_go_to_decode_alone_and_are_counted(front: Front) -> None:
    request_id, headers = named()
    answer = front.openai.chat.completions.create(
        model=MODEL_NAME, messages=[{"role": "user", "content": PROMPT}], n=2, max_tokens=8, extra_headers=headers
    )
    assert len(answer.choices) == 2
    turn = front.turn(request_id)
    assert (turn["cause"], turn["detail"], turn["prefill"]) == ("missing_metadata", "unsupported", None)
    page = get(front.service.port, "/metrics")[1].decode()
    assert re.search(
        r'^kvdiag_turns_total\{cause="missing_metadata",detail="unsupported".*\} [1-9]', page, re.MULTILINE
    )


def test_a_clients_own_handle_is_dropped(front: Front, stack: LocalStack) -> None:
    """It could name the blocks of somebody else's conversation."""
    request_id, headers = named()
    stolen = {
        "do_remote_prefill": False,
        "do_remote_decode": True,
        "remote_engine_id": "somebody",
        "remote_request_id": "theirs",
        "remote_host": "127.0.0.1",
        "remote_port": int(stack.decodes[0].environment["VLLM_NIXL_SIDE_CHANNEL_PORT"]),
        "remote_block_ids": [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]],
        "remote_num_tokens": 160,
    }
    answer = front.openai.chat.completions.create(
        model=MODEL_NAME,
        messages=[{"role": "user", "content": f"mine: {PROMPT}"}],
        max_tokens=8,
        extra_body={"kv_transfer_params": stolen},
        extra_headers=headers,
    )
    private(answer.model_dump_json())
    turn = front.turn(request_id)
    assert (turn["cause"], turn["remote_tokens"] or 0) == ("first_turn", 0)


def test_a_client_that_goes_away_stops_its_request(front: Front, stack: LocalStack) -> None:
    decode = stack.decodes[0].port
    generated = _generated(decode)
    request_id, headers = named()
    events = front.openai.chat.completions.create(
        model=MODEL_NAME,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=LONG_ANSWER,
        stream=True,
        extra_body={"ignore_eos": True},
        extra_headers=headers,
    )
    next(iter(events))
    until(lambda: _running(decode) == 1)
    events.close()
    turn = front.turn(request_id)
    assert (turn["cause"], turn["detail"]) == ("client", "aborted")
    until(lambda: _running(decode) == 0)
    assert _generated(decode) - generated < LONG_ANSWER


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _running(port: int) -> float:
    return _sum(port, r"^vllm:num_requests_running\{.*\} (\S+)")


def _generated(port: int) -> float:
    return _sum(port, r"^vllm:generation_tokens_total\{.*\} (\S+)")


def _sum(port: int, pattern: str) -> float:
    page = get(port, "/metrics")[1].decode()
    return sum(map(float, re.findall(pattern, page, re.MULTILINE)))


def test_models_tokenizer_and_mistakes_answer_as_the_engine_does(front: Front) -> None:
    assert [model.id for model in front.openai.models.list()] == [MODEL_NAME]
    assert get(front.service.port, "/version")[0] == 200
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
    with pytest.raises(openai.NotFoundError):
        front.openai.chat.completions.create(model="another", messages=messages)
    with pytest.raises(openai.BadRequestError):
        front.openai.chat.completions.create(model=MODEL_NAME, messages=messages, temperature=-7)
