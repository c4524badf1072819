"""Differences that are there are found, differences that are not are called noise."""

from __future__ import annotations

import random

import pytest

from kvdiag.diagnosis.comparison import Comparison, Row, arms, compare
from kvdiag.diagnosis.report import Report, TurnCounts, TurnReport, Verdict, Window


def side(seed: int, *, conversations: int = 30, slower: float = 1.0, hits: float = 0.7) -> Report:
    """Conversations of eight turns whose speed differs from one to the next, as real ones do."""
    dice, turns = random.Random(seed), []
    for conversation in range(conversations):
        pace = slower * dice.lognormvariate(0, 0.4)
        for number in range(1, 9):
            hit = number > 1 and dice.random() < hits
            turns.append(
                TurnReport(
                    request_id=f"{conversation}-{number}",
                    conversation=f"c{conversation}",
                    turn=number,
                    cause="first_turn" if number == 1 else "remote_hit" if hit else "missing_metadata",
                    confidence="certain",
                    ttft_s=pace * dice.lognormvariate(-1 if hit else 0, 0.2),
                    prompt_tokens=1000,
                    lost_tokens=0 if hit else 800,
                )
            )
    return Report(
        verdict=Verdict(cause="healthy", confidence="certain", summary=""),
        window=Window(),
        turns=TurnCounts(),
        findings=[],
        not_evaluated=[],
        inputs=[],
        per_turn=turns,
    )


def row(comparison: Comparison, measure: str) -> Row:
    return next(row for row in comparison.rows if row.measure == measure)


def test_a_log_compared_with_itself_is_within_noise() -> None:
    comparison = compare(side(1), side(1))
    assert {row.change for row in comparison.rows} == {"within noise"}
    assert all(row.a == row.b for row in comparison.rows)


def test_equal_deployments_rarely_differ() -> None:
    """The intervals hold jointly at 95 %: of 20 equal pairs at most 3 may differ anywhere."""
    alarms = sum(
        any(
            row.change != "within noise"
            for row in compare(side(seed, conversations=12), side(seed + 100, conversations=12)).rows
        )
        for seed in range(20)
    )
    assert alarms <= 3


@pytest.mark.parametrize(("slower", "change"), [(0.5, "better"), (2.0, "worse")])
def test_a_real_change_of_speed_is_found(slower: float, change: str) -> None:
    found = row(compare(side(1), side(2, slower=slower)), "TTFT, later turns")
    assert found.change == change
    assert found.low is not None
    assert found.high is not None
    assert found.a is not None
    assert found.b is not None
    assert found.low <= found.b - found.a <= found.high


@pytest.mark.parametrize(("hits", "change"), [(0.95, "better"), (0.3, "worse")])
def test_a_change_of_reuse_is_found_in_hits_and_in_lost_tokens(hits: float, change: str) -> None:
    comparison = compare(side(1), side(2, hits=hits))
    assert row(comparison, "hit share of later turns").change == change
    assert row(comparison, "lost share of prompt tokens").change == change


@pytest.mark.parametrize("conversations", [0, 1, 4])
def test_too_few_conversations_are_not_judged(conversations: int) -> None:
    comparison = compare(side(1), side(2, slower=9, conversations=conversations))
    assert {row.change for row in comparison.rows} == {"too few"}
    assert all(row.low is None for row in comparison.rows)


def test_turns_of_one_conversation_do_not_count_as_many() -> None:
    one_slow_conversation = side(2, conversations=4)
    assert one_slow_conversation.per_turn is not None
    for turn in one_slow_conversation.per_turn:
        turn.ttft_s = 100.0
    assert row(compare(side(1), one_slow_conversation), "TTFT, later turns").change == "too few"


def test_equal_seeds_give_equal_intervals() -> None:
    assert compare(side(1), side(2), seed=5) == compare(side(1), side(2), seed=5)
    assert compare(side(1), side(2), seed=5) != compare(side(1), side(2), seed=6)


def test_every_turn_bucket_has_its_row() -> None:
    measures = [row.measure for row in compare(side(1), side(2)).rows]
    assert [name for name in measures if name.startswith("TTFT, turn")] == [
        "TTFT, turn 1",
        "TTFT, turn 2-4",
        "TTFT, turn 5-9",
    ]


def test_empty_logs_compare_to_nothing() -> None:
    assert compare(side(1, conversations=0), side(2, conversations=0)).rows == []


def test_a_holdout_is_compared_with_the_others() -> None:
    both = side(1)
    held_out = side(2, conversations=20, slower=3.0, hits=0.0)
    assert both.per_turn is not None
    assert held_out.per_turn is not None
    for turn in held_out.per_turn:
        turn.conversation = f"held-{turn.conversation}"
        turn.detail = "holdout" if turn.cause == "missing_metadata" else None
    both.per_turn += held_out.per_turn
    off, on = arms(both)
    assert (len(off.per_turn or []), len(on.per_turn or [])) == (160, 240)
    assert row(compare(off, on), "TTFT, later turns").change == "better"


def test_turns_of_which_nothing_tells_whether_they_reused_are_in_no_share() -> None:
    unknown = side(1)
    for turn in unknown.per_turn or []:
        turn.cause = "unexplained"

    measures = {row.measure for row in compare(unknown, unknown).rows}

    assert "TTFT, later turns" in measures
    assert not measures & {"hit share of later turns", "TTFT, reused", "TTFT, not reused"}
