"""Settings from synthetic conversations whose best settings are known."""

from __future__ import annotations

import datetime
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.diagnosis.report import Report, Settings, TurnCounts, TurnReport, Verdict, Window
from kvdiag.diagnosis.tuning import Advice, Tuning, fit, tune

if TYPE_CHECKING:
    from collections.abc import Sequence

START = datetime.datetime(2026, 11, 29, tzinfo=datetime.UTC)
PREFILL_PER_TOKEN, READ_FIXED, READ_PER_TOKEN = 200e-6, 0.030, 20e-6
BYTES_PER_TOKEN = 100_000


def a_report(turns: Sequence[TurnReport], settings: Settings | None = None) -> Report:
    return Report(
        verdict=Verdict(cause="healthy", confidence="certain", summary=""),
        window=Window(),
        turns=TurnCounts(),
        findings=[],
        not_evaluated=[],
        inputs=[],
        settings=settings or Settings(),
        per_turn=list(turns),
    )


def conversations(gaps: Sequence[float], *, every_s: float = 10.0) -> list[TurnReport]:
    """One conversation of two turns for each gap: a computed first turn, then a read-back second."""
    dice, turns = random.Random(7), []
    for number, gap in enumerate(gaps):
        tokens = dice.randint(500, 8000)
        begun = START + datetime.timedelta(seconds=number * every_s)
        first = TurnReport(
            request_id=f"{number}-1",
            conversation=f"c{number}",
            turn=1,
            ts=begun.isoformat(),
            cause="first_turn",
            confidence="certain",
            prompt_tokens=tokens,
            computed_tokens=tokens,
            prefill_s=0.02 + PREFILL_PER_TOKEN * tokens,
        )
        second = TurnReport(
            request_id=f"{number}-2",
            conversation=f"c{number}",
            turn=2,
            ts=(begun + datetime.timedelta(seconds=gap)).isoformat(),
            cause="remote_hit",
            confidence="certain",
            gap_s=gap,
            prompt_tokens=tokens,
            remote_tokens=tokens,
            transfer_bytes=tokens * BYTES_PER_TOKEN,
            transfer_s=READ_FIXED + READ_PER_TOKEN * tokens,
        )
        turns += [first, second]
    return turns


GAPS = [float(gap) for gap in range(1, 101)]


def advice(tuning: Tuning, setting: str) -> Advice:
    return next(item for item in tuning.advice if item.setting == setting)


def test_the_ttl_covers_the_target_share_of_gaps() -> None:
    tuning = tune(a_report(conversations(GAPS)), target=0.95)
    value = advice(tuning, "decoder_kv_blocks_ttl").value
    assert value is not None
    assert 95 + 5 < value <= 95 + 5 + 10
    assert next(row for row in tuning.rows if row.ttl_s == value).reusable >= 0.95


def test_the_router_lets_go_before_prefill_would_decline() -> None:
    tuning = tune(a_report(conversations(GAPS)))
    decode, router = (advice(tuning, name).value for name in ("decoder_kv_blocks_ttl", "router handle TTL"))
    assert decode is not None
    assert router is not None
    assert router < decode - 5


def test_the_threshold_is_where_reading_and_computing_take_equally_long() -> None:
    tuning = tune(a_report(conversations(GAPS)))
    assert advice(tuning, "kv_recompute_threshold").value == pytest.approx(
        READ_FIXED / (PREFILL_PER_TOKEN - READ_PER_TOKEN), abs=1
    )


def test_costs_cross_at_the_threshold() -> None:
    tuning = tune(a_report(conversations(GAPS)))
    threshold = advice(tuning, "kv_recompute_threshold").value
    assert threshold is not None
    assert all((row.read_s < row.compute_s) == (row.tokens >= threshold) for row in tuning.costs)
    assert len(tuning.costs) > 3


def test_a_transfer_slower_than_computing_gets_no_threshold() -> None:
    turns = conversations(GAPS)
    for turn in turns:
        if turn.transfer_s and turn.remote_tokens:
            turn.transfer_s = 300e-6 * turn.remote_tokens
    item = advice(tune(a_report(turns)), "kv_recompute_threshold")
    assert item.value is None
    assert item.why.startswith("reading never pays")


def test_held_memory_follows_from_gaps_and_sizes() -> None:
    """100 conversations of two turns over 1,090 s: the first turn is held for its gap, the second for the TTL."""
    turns = conversations(GAPS)
    tuning = tune(a_report(turns, Settings(decoder_kv_blocks_ttl=50.0)))
    row = next(row for row in tuning.rows if row.ttl_s == 50)
    firsts = sum((turn.prompt_tokens or 0) * min(gap, 50) for turn, gap in zip(turns[::2], GAPS, strict=True))
    lasts = sum((turn.prompt_tokens or 0) * 50 for turn in turns[1::2])
    assert row.held_tokens == pytest.approx((firsts + lasts) / 1090)
    assert row.held_bytes == pytest.approx((firsts + lasts) / 1090 * BYTES_PER_TOKEN)
    assert row.reusable == pytest.approx(0.44)


def test_a_memory_budget_wins_over_the_target() -> None:
    report = a_report(conversations(GAPS))
    free = tune(report)
    budget = free.rows[1].held_bytes
    assert budget is not None
    item = advice(tune(report, memory=budget), "decoder_kv_blocks_ttl")
    assert item.value == pytest.approx(free.rows[1].ttl_s, abs=1)
    assert "memory allows no more" in item.why


def test_a_budget_that_allows_nothing_is_said_to() -> None:
    item = advice(tune(a_report(conversations(GAPS)), memory=1), "decoder_kv_blocks_ttl")
    assert item.value is None
    assert "no retention at all" in item.why


def test_a_budget_beyond_need_changes_nothing() -> None:
    report = a_report(conversations(GAPS))
    assert tune(report, memory=1e18).advice[0] == tune(report).advice[0]


@pytest.mark.parametrize("count", [0, 1, 29])
def test_says_when_gaps_are_too_few(count: int) -> None:
    tuning = tune(a_report(conversations(GAPS[:count])))
    item = advice(tuning, "decoder_kv_blocks_ttl")
    assert item.value is None
    assert f"{count} gaps" in item.why
    assert ("turn log" in item.why) is (count == 0)
    assert advice(tuning, "router handle TTL").value is None


def test_says_when_speeds_are_unknown() -> None:
    turns = conversations(GAPS)
    for turn in turns:
        turn.transfer_s = None
    item = advice(tune(a_report(turns)), "kv_recompute_threshold")
    assert item.value is None
    assert "reads" in item.why


def test_a_single_request_is_held_for_the_whole_ttl() -> None:
    turns = [
        TurnReport(
            request_id=str(at), cause="missing_metadata", confidence="certain", prompt_tokens=1000, ts=ts, gap_s=1.0
        )
        for at, ts in enumerate(["2026-11-29T00:00:00Z", "2026-11-29T00:01:40Z"])
    ]
    row = next(row for row in tune(a_report(turns)).rows if row.ttl_s == 60)
    assert row.held_tokens == pytest.approx(2 * 1000 * 60 / 100)


def test_nothing_at_all_is_no_error() -> None:
    tuning = tune(a_report([]))
    assert tuning.rows == []
    assert all(item.value is None for item in tuning.advice)


@pytest.mark.parametrize("outliers", [0, 20])
def test_the_line_withstands_outliers(outliers: int) -> None:
    points = [(float(x), 0.5 + 0.001 * x) for x in range(100, 200)]
    points[:outliers] = [(x, 60.0) for x, _ in points[:outliers]]
    line = fit(points)
    assert line is not None
    assert line.per_token_s == pytest.approx(0.001, rel=0.3)


@pytest.mark.parametrize("points", [[], [(1.0, 1.0)] * 9, [(100.0, 1.0)] * 50, [(100.0 + x, 1.0) for x in range(20)]])
def test_no_line_through_too_few_or_too_alike(points: list[tuple[float, float]]) -> None:
    assert fit(points) is None


TURN = st.builds(
    TurnReport,
    request_id=st.text(max_size=3),
    conversation=st.none() | st.sampled_from("ab"),
    turn=st.none() | st.integers(0, 5),
    ts=st.none() | st.sampled_from(["2026-11-29T00:00:00Z", "2026-11-29T00:00:09", "nonsense"]),
    cause=st.sampled_from(["first_turn", "remote_hit", "strange"]),
    confidence=st.just("likely"),
    prompt_tokens=st.none() | st.integers(0, 10**6),
    computed_tokens=st.none() | st.integers(0, 10**6),
    remote_tokens=st.none() | st.integers(0, 10**6),
    gap_s=st.none() | st.floats(0, 1e6),
    prefill_s=st.none() | st.floats(0, 1e3),
    transfer_s=st.none() | st.floats(0, 1e3),
    transfer_bytes=st.none() | st.integers(0, 10**12),
)


@given(st.lists(TURN, max_size=60), st.none() | st.floats(1, 1e15))
def test_any_turns_give_an_answer(turns: list[TurnReport], memory: float | None) -> None:
    tuning = tune(a_report(turns), memory=memory)
    shares = [row.reusable for row in tuning.rows]
    assert shares == sorted(shares)
    assert all(item.value is None or item.value > 0 for item in tuning.advice)
