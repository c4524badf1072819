"""All spellings of one request lead to one external id."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.diagnosis.casebook import Casebook
from kvdiag.diagnosis.ids import MAX_CONVERSATION_CHARS, MAX_ID_CHARS, conversation_id, external_id


@pytest.mark.parametrize(
    ("spelling", "external"),
    [
        ("chatcmpl-c7610ccb-312b-4bce-8bc5-f207b6e70b45", "c7610ccb-312b-4bce-8bc5-f207b6e70b45"),
        ("chatcmpl-c7610ccb-312b-4bce-8bc5-f207b6e70b45-83994e35", "c7610ccb-312b-4bce-8bc5-f207b6e70b45"),
        ("cmpl-job-7-0-83994e35", "job-7"),
        ("cmpl-job-7-0", "job-7"),
        ("generate-tokens-abc-83994e35", "abc"),
        ("0_chatcmpl-abc-83994e35", "abc"),
        ("6f1d2c3b-0000-4000-8000-000000000000", "6f1d2c3b-0000-4000-8000-000000000000"),
        ("chatcmpl-fa6f9edebbd08a01a5e3ca37ad5c1553-cd00e2d1", "fa6f9edebbd08a01a5e3ca37ad5c1553"),
    ],
)
def test_a_spelling_leads_to_the_routers_id(spelling: str, external: str) -> None:
    assert external_id(spelling) == external


def test_an_id_printed_before_the_suffix_is_added_keeps_its_end() -> None:
    assert external_id("chatcmpl-job-deadbeef", suffixed=False) == "job-deadbeef"


@given(st.text())
def test_ids_of_strangers_are_bounded(text: str) -> None:
    assert len(external_id(text)) <= MAX_ID_CHARS


@given(st.text())
def test_conversations_of_strangers_are_bounded(text: str) -> None:
    assert len(conversation_id(text)) <= MAX_CONVERSATION_CHARS


@pytest.mark.parametrize(("name", "told"), [("wf-7", "wf-7"), ("", ""), ("a" * 256, "a" * 256)])
def test_a_conversation_keeps_its_name(name: str, told: str) -> None:
    assert conversation_id(name) == told


def test_long_names_of_conversations_stay_apart() -> None:
    assert len({conversation_id("a" * 300 + end) for end in "bcd"}) == 3


P, D = ("prefill.log", 7), ("decode.log", 8)


@pytest.mark.parametrize(
    ("told", "turns"),
    [
        ([("chatcmpl-a-0000000a", P), ("chatcmpl-a-0000000b", D), ("a", None)], ["a"]),
        ([("chatcmpl-a-0000000a", P), ("chatcmpl-a-0000000a", P), ("a", None)], ["a"]),
        ([("chatcmpl-run-deadbeef", P), ("run-deadbeef", None)], ["run-deadbeef"]),
        ([("run-deadbeef", None), ("chatcmpl-run-deadbeef", P)], ["run-deadbeef"]),
        ([("chatcmpl-run-deadbeef", P), ("chatcmpl-run-cafebabe", P)], ["run", "run-cafebabe"]),
        (
            [
                ("chatcmpl-run-deadbeef", P),
                ("chatcmpl-run-cafebabe", P),
                ("run-cafebabe", None),
                ("run-deadbeef", None),
            ],
            ["run-cafebabe", "run-deadbeef"],
        ),
        ([("chatcmpl-run-deadbeef-0000000a", P), ("run-deadbeef", None)], ["run-deadbeef"]),
        ([("cmpl-job-0-0000000a", P), ("cmpl-job-1-0000000b", P)], ["job"]),
    ],
)
def test_a_suffix_is_taken_off_where_engines_add_one(
    told: list[tuple[str, tuple[str, int] | None]], turns: list[str]
) -> None:
    book = Casebook()
    for spelling, teller in told:
        turn = book.named(spelling) if teller is None else book.request(spelling, teller)
        assert book.turns[turn.id] is turn

    assert sorted(book.turns) == turns
