from __future__ import annotations

import json
from typing import Any

import pytest

from kvdiag.router.bodies import APIS, Body
from kvdiag.router.identity import ID_LIMIT, Identifier, Identity
from kvdiag.router.replies import Reply

IDENTIFIER = Identifier(b"secret", derive=True)
USER = {"role": "user", "content": "hi"}


def identify(
    body: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
    path: str = "/v1/chat/completions",
    by: Identifier = IDENTIFIER,
) -> Identity:
    sent = {name.encode(): value.encode() for name, value in (headers or {}).items()}
    fields = {"model": "m", "messages": [USER], **(body or {})}
    return by.identify(sent, Body.parse(APIS[path], json.dumps(fields).encode()))


SOURCES: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({}, {"x-conversation-id": "a"}),
    ({}, {"x-session-id": "a"}),
    ({"conversation_id": "a"}, {}),
    ({"session_id": "a"}, {}),
    ({"metadata": {"conversation_id": "a"}}, {}),
]


@pytest.mark.parametrize("first", range(len(SOURCES)))
def test_names_are_taken_in_a_fixed_order(first: int) -> None:
    body: dict[str, Any] = {}
    headers: dict[str, str] = {}
    for position, (fields, lines) in enumerate(SOURCES[first:]):
        value = "a" if position == 0 else "other"
        body |= {k: {"conversation_id": value} if isinstance(v, dict) else value for k, v in fields.items()}
        headers |= dict.fromkeys(lines, value)
    assert identify(body, headers).key == identify({}, {"x-conversation-id": "a"}).key


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"conversation_id": 7}, {}),
        ({"conversation_id": None, "metadata": "x"}, {}),
        ({"metadata": {"conversation_id": ["a"]}}, {}),
        ({"session_id": ""}, {}),
        ({}, {"x-conversation-id": "a" * (ID_LIMIT + 1)}),
        ({"conversation_id": "é" * ID_LIMIT}, {}),
    ],
)
def test_what_is_no_name_is_not_taken_as_one(body: dict[str, Any], headers: dict[str, str]) -> None:
    assert identify(body, headers).link == "history"


def test_names_are_kept_apart_by_tenant_and_model_and_never_shown() -> None:
    keys = {
        identify({"model": model}, {"x-conversation-id": "name", **tenant}).key
        for model in ("m", "n")
        for tenant in ({}, {"authorization": "Bearer a"}, {"x-api-key": "Bearer a2"})
    }
    assert len(keys) == 6
    identity = identify({}, {"x-conversation-id": "name"})
    assert identity.key is not None
    assert identity.conversation == identity.key.hex()[:16]
    assert identify({}, {"x-conversation-id": "name"}, by=Identifier(b"other", derive=True)).key != identity.key


def turn(history: list[dict[str, Any]], answer: dict[str, Any] | None = None, **body: Any) -> bytes | None:  # noqa: ANN401
    """Return the key that a turn leaves (with an answer) or looks for (without)."""
    identity = identify({"messages": history, **body})
    if answer is None:
        return identity.key
    reply = Reply()
    reply.read_message(json.dumps(answer).encode())
    return identity.next_key(reply)


ANSWER = {"role": "assistant", "content": "yes"}
MORE = {"role": "user", "content": "more"}


def test_a_history_leads_to_the_next_turn() -> None:
    left = turn([USER], ANSWER)
    assert left is not None
    assert turn([USER, ANSWER, MORE]) == left
    assert turn([USER, {**ANSWER, "content": " yes\n", "reasoning": "x"}, MORE, MORE]) == left
    assert turn([{**USER, "cache_control": {"type": "ephemeral"}}, ANSWER, MORE]) != left
    assert turn([USER]) is None


def test_cache_hints_may_move_between_turns() -> None:
    hinted = {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}
    plain = {"content": [{"text": "hi", "type": "text"}], "role": "user"}
    elsewhere = {"content": [{"cache_control": {"type": "x"}, "text": "hi", "type": "text"}], "role": "user"}
    assert turn([hinted], ANSWER) == turn([elsewhere, ANSWER, MORE])
    assert turn([plain], ANSWER) is not None


@pytest.mark.parametrize(
    ("history", "body"),
    [
        ([{"role": "user", "content": "hi!"}, ANSWER, MORE], {}),
        ([USER, {"role": "assistant", "content": "no"}, MORE], {}),
        ([USER, USER, ANSWER, MORE], {}),
        ([USER, ANSWER, MORE], {"tools": [{"type": "function"}]}),
        ([USER, ANSWER, MORE], {"model": "n"}),
    ],
)
def test_another_history_leads_elsewhere(history: list[dict[str, Any]], body: dict[str, Any]) -> None:
    assert turn(history, **body) != turn([USER], ANSWER)


def test_an_unreadable_answer_links_nothing() -> None:
    reply = Reply()
    reply.read_answer(b"{")
    assert identify({}).next_key(reply) is None
    assert identify({}).next_key(None) is None


def test_responses_are_linked_by_their_id() -> None:
    reply = Reply()
    reply.read_answer(b'{"id":"resp_1"}')
    left = identify({"input": "hi"}, path="/v1/responses").next_key(reply)
    assert left == identify({"previous_response_id": "resp_1"}, path="/v1/responses").key
    assert left != identify({"previous_response_id": "resp_2"}, path="/v1/responses").key


def test_a_completion_without_a_name_links_nothing() -> None:
    assert identify({"prompt": "a"}, path="/v1/completions").link is None
