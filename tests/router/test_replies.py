from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.router.harness import chunk, sse

from kvdiag.router import replies
from kvdiag.router.replies import Reply


def told(*events: dict[str, Any]) -> bytes:
    reply = Reply()
    reply.read_events(b"".join(map(sse, events)) + b"data: [DONE]\n\n")
    assert reply.readable
    return reply.canonical()


def sent(message: dict[str, Any]) -> bytes:
    reply = Reply()
    reply.read_message(json.dumps(message).encode())
    assert reply.readable
    return reply.canonical()


def call(index: int, **function: str) -> dict[str, Any]:
    call_id = {"id": function.pop("id")} if "id" in function else {}
    return {"index": index, **call_id, "type": "function", "function": function}


@given(text=st.text(max_size=40), cut=st.integers(min_value=0, max_value=40))
def test_a_streamed_text_is_the_text_that_clients_send_back(text: str, cut: int) -> None:
    events = chunk({"role": "assistant", "content": ""}), chunk({"content": text[:cut]}), chunk({"content": text[cut:]})
    message = {"role": "assistant", "content": text, "reasoning_content": "left out", "refusal": None}
    assert told(*events) == sent(message) == sent({"role": "assistant", "content": [{"type": "text", "text": text}]})


def test_streamed_tool_calls_are_the_calls_that_clients_send_back() -> None:
    events = (
        chunk({"reasoning_content": "hm"}),
        chunk({"tool_calls": [call(0, id="a", name="look", arguments="")]}),
        chunk({"tool_calls": [call(0, arguments='{"x":')]}),
        chunk({"tool_calls": [call(0, arguments="1}"), call(1, id="b", name="stop", arguments="{}")]}),
    )
    calls = [
        {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "stop", "arguments": ""}},
    ]
    assert told(*events) == sent({"role": "assistant", "content": None, "tool_calls": calls})
    calls[0]["id"] = "other"
    assert told(*events) != sent({"role": "assistant", "tool_calls": calls})


def test_anthropic_streams_are_what_anthropic_clients_send_back() -> None:
    events: tuple[dict[str, Any], ...] = (
        {"type": "message_start", "message": {"id": "msg", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Let me look"}},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}},
        },
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"q": '}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "2}"}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 3}},
    )
    content = [
        {"type": "thinking", "thinking": "left out", "signature": "s"},
        {"type": "text", "text": "Let me look"},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"q": 2}},
    ]
    whole = Reply()
    whole.read_answer(json.dumps({"id": "msg", "role": "assistant", "content": content}).encode())
    assert told(*events) == sent({"role": "assistant", "content": content}) == whole.canonical()


def test_only_the_first_choice_counts() -> None:
    other = chunk({"content": "b"})
    other["choices"][0]["index"] = 1
    assert told(chunk({"content": "a"}), other) == sent({"role": "assistant", "content": "a"})


@pytest.mark.parametrize(
    ("event", "response_id"),
    [
        ({"id": "resp_1", "output": []}, "resp_1"),
        ({"type": "response.created", "response": {"id": "resp_2"}}, "resp_2"),
    ],
)
def test_a_responses_id_is_kept(event: dict[str, Any], response_id: str) -> None:
    reply = Reply()
    reply.read_answer(json.dumps(event).encode())
    assert reply.response_id == response_id


@given(data=st.binary(max_size=100))
def test_strange_answers_are_unreadable_and_nothing_else(data: bytes) -> None:
    reply = Reply()
    reply.read_answer(data)
    reply.read_events(b"data:" + data)
    reply.read_message(data)
    reply.canonical()


def test_an_endless_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "REPLY_LIMIT", 10)
    reply = Reply()
    reply.read_events(sse(chunk({"content": "x" * 11})))
    assert not reply.readable
