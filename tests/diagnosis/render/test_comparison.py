"""What `compare` says on a terminal."""

from __future__ import annotations

import re

from kvdiag.diagnosis.comparison import Comparison, Row
from kvdiag.diagnosis.render import Style, show
from kvdiag.diagnosis.render.comparison import render

COMPARISON = Comparison(
    seed=3,
    rows=[
        Row(
            measure="TTFT, later turns",
            unit="s",
            turns_a=80,
            turns_b=90,
            a=0.2,
            b=0.5,
            low=0.1,
            high=0.4,
            change="worse",
        ),
        Row(measure="hit share", unit="share", turns_a=80, turns_b=9, a=0.9, b=None, change="too few"),
    ],
)


def test_a_row_shows_both_sides_the_interval_and_the_judgement() -> None:
    text = render(COMPARISON, Style(color=False))
    row = next(line for line in text.splitlines() if "TTFT" in line)
    assert re.split(r" {2,}", row.strip()) == [
        "TTFT, later turns",
        "80",
        "90",
        "200 ms",
        "500 ms",
        "+300 ms",
        "+100 ms to +400 ms",
        "worse",
    ]


def test_what_is_missing_is_shown_as_unknown() -> None:
    row = next(line for line in render(COMPARISON, Style(color=False)).splitlines() if "hit share" in line)
    assert re.split(r" {2,}", row.strip())[3:] == ["90.0%", "?", "?", "-", "too few"]


def test_the_seed_is_stated() -> None:
    assert "seed 3" in render(COMPARISON, Style(color=False))
    assert '"seed": 3' in show(COMPARISON, "comparison", "json")


def test_a_change_of_a_share_is_told_in_points() -> None:
    share = Row(
        measure="hit share", unit="share", turns_a=80, turns_b=80, a=0.5, b=0.25, low=-0.3, high=-0.2, change="worse"
    )
    row = next(
        line for line in render(Comparison(seed=0, rows=[share]), Style(color=False)).splitlines() if "hit" in line
    )
    assert "-25.0 points" in row
    assert "-30.0 points to -20.0 points" in row
