"""The article's experiment: what is kept, and what is made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from benchmarks.article.page import break_even, saved, table
from benchmarks.article.turns import ARMS, Arm, Turn, keep, load

if TYPE_CHECKING:
    from pathlib import Path


def turn(pair: int, number: int, arm: Arm, ttft_s: float, length: int = 500) -> Turn:
    read = 384 if arm == "on" and number > 1 else 0
    return Turn(
        arrangement="cold",
        length=length,
        pair=pair,
        arm=arm,
        turn=number,
        ttft_s=ttft_s,
        prompt_tokens=640,
        local_tokens=0,
        remote_tokens=read,
        computed_tokens=640 - read,
        prefill_s=ttft_s / 2,
        cause="remote_hit" if read else "first_turn",
        read_bytes=read * 2048,
        read_s=0.002 if read else 0.0,
    )


def conversations(pairs: int, length: int = 500, off_s: float = 0.3, on_s: float = 0.1) -> list[Turn]:
    return [
        turn(pair, number, arm, off_s if arm == "off" else on_s, length)
        for pair in range(pairs)
        for number in (1, 2)
        for arm in ARMS
    ]


def test_turns_are_kept_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert load(path) == []
    turns = conversations(2)
    keep(path, turns[:4])
    keep(path, turns[4:])
    assert load(path) == turns


def test_first_and_later_turns_have_rows_of_their_own_and_ratios_need_five_pairs() -> None:
    _, _, first, later = table(conversations(5))
    assert "| first | 300 / 300 | 100 / 100 | 3 [3..3] | 150 / 50 | none | 0 % / 0 % |" in first
    assert "| later | 300 / 300 | 100 / 100 | 3 [3..3] | 150 / 50 | 0.786 / 2 | 60 % / 0 % |" in later
    assert "no ratio: 4 of 5 pairs" in table(conversations(4))[3]


def test_turns_are_paired_by_number_not_by_the_order_in_which_they_ran() -> None:
    turns = [msgspec.structs.replace(one, ttft_s=one.ttft_s * (1 + one.pair)) for one in conversations(5)]
    assert table(turns[::-1]) == table(turns)
    assert "3 [3..3]" in table(turns)[3]


def test_what_is_saved_is_told_by_tokens_read() -> None:
    ((tokens, seconds),) = saved(conversations(5))
    assert (tokens, round(seconds, 6)) == (384, 0.2)
    assert saved(conversations(4)) == [], "too few pairs"


@pytest.mark.parametrize(
    ("points", "tokens"),
    [
        ([(100, -1.0), (300, 1.0), (1000, 5.0)], 200),
        ([(100, 1.0), (200, -1.0), (300, 1.0)], 250),
        ([(100, 1.0), (300, 2.0)], None),
        ([(100, -2.0), (300, -1.0)], None),
        ([], None),
    ],
    ids=["between two lengths", "the last time counts", "always pays", "never pays", "nothing read"],
)
def test_the_break_even_is_where_savings_pass_zero_for_good(
    points: list[tuple[float, float]], tokens: float | None
) -> None:
    assert break_even(points) == tokens
