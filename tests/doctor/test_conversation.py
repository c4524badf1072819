"""Requests and answers of a probe, strange answers included."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kvdiag.doctor.conversation import BrokenLinkError, Speaker, Turn
from kvdiag.doctor.http import Server
from kvdiag.doctor.site import Service

from .conftest import Fake

if TYPE_CHECKING:
    from collections.abc import Callable

SPEAKER = Speaker("tiny", tokens=96, timeout_s=5)


def answering(serve: Callable[[Fake], Fake], text: str, status: int = 200) -> Service:
    fake = serve(Fake(answer=lambda _path, _body, _headers: (status, text)))
    return Service("prefill", Server.parse(fake.url))


@pytest.mark.parametrize(
    ("turn", "prompt"),
    [
        (Turn([1, 2], [3], {}), [1, 2, 3, 1, 2]),
        (Turn("ask", "answer", {}), "askanswer Go on."),
        (Turn(list(range(100)), [7], {}), [*range(100), 7, *range(32)]),
    ],
)
def test_a_turn_is_followed_by_all_of_it_and_a_little_more(turn: Turn, prompt: list[int] | str) -> None:
    assert turn.followed_by() == prompt


def test_openings_are_long_enough_and_never_the_same() -> None:
    first, second = SPEAKER.opening(), SPEAKER.opening()
    assert first != second
    assert len(first) >= 4 * SPEAKER.tokens


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"choices": 5}', '{"choices": []}', '{"choices": [[]]}', '{"kv_transfer_params": 3}']
)
def test_a_strange_answer_is_an_empty_turn(serve: Callable[[Fake], Fake], text: str) -> None:
    turn = SPEAKER.complete(answering(serve, text), "ask")
    assert (turn.prompt, turn.answer, turn.params) == ("ask", "", {})


@pytest.mark.parametrize(
    ("stream", "found"),
    [
        ("", {}),
        ("data: [DONE]\n\n", {}),
        ("data: {broken\n\ndata: [1]\n\n", {}),
        (f"data: {json.dumps({'choices': []})}\n\ndata: {json.dumps({'kv_transfer_params': {'a': 1}})}\n\n", {"a": 1}),
    ],
)
def test_a_handle_is_found_in_whichever_chunk_it_comes(
    serve: Callable[[Fake], Fake], stream: str, found: dict[str, int]
) -> None:
    assert SPEAKER.chat(answering(serve, stream), {}, stream=True) == found


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"error": {"message": "no such model"}}', "no such model"),
        ("<html>bad gateway", "<html>bad gateway"),
        ("", ""),
    ],
)
def test_a_refusal_is_told_in_the_servers_words(serve: Callable[[Fake], Fake], text: str, complaint: str) -> None:
    with pytest.raises(BrokenLinkError, match="answered 502") as error:
        SPEAKER.complete(answering(serve, text, 502), "ask")
    assert str(error.value).endswith(f": {complaint}")


def test_a_long_complaint_is_cut(serve: Callable[[Fake], Fake]) -> None:
    with pytest.raises(BrokenLinkError) as error:
        SPEAKER.complete(answering(serve, "x" * 10_000, 500), "ask")
    assert len(str(error.value)) < 300
