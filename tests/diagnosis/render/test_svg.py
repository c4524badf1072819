"""Scales map and mark values; frames place them."""

from __future__ import annotations

from xml.etree.ElementTree import tostring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.diagnosis.render import svg

FINITE = st.floats(1e-6, 1e12)


@pytest.mark.parametrize(("value", "position"), [(1, 0.0), (10, 0.5), (100, 1.0)])
def test_a_logarithmic_scale_spaces_decades_evenly(value: float, position: float) -> None:
    assert svg.Scale(1, 100, str, logarithmic=True).position(value) == pytest.approx(position)


@pytest.mark.parametrize(
    ("scale", "ticks"),
    [
        (svg.Scale(0, 100, str), [0, 20, 40, 60, 80, 100]),
        (svg.Scale(0.5, 14.5, str), [2, 4, 6, 8, 10, 12, 14]),
        (svg.Scale(1, 1000, str, logarithmic=True), [1, 10, 100, 1000]),
        (svg.Scale(0.9, 9, str, logarithmic=True), [1, 2, 5]),
    ],
)
def test_ticks_are_round(scale: svg.Scale, ticks: list[float]) -> None:
    assert scale.ticks() == pytest.approx(ticks)


@given(st.lists(FINITE, min_size=1))
def test_every_value_lies_on_its_scale(values: list[float]) -> None:
    for scale in (svg.linear(values, str), svg.logarithmic(values, str)):
        assert all(0 <= scale.position(value) <= 1 for value in values)
        assert len(scale.ticks()) <= 40


@given(st.lists(st.floats(0, 4e9), min_size=1))
def test_every_moment_lies_on_the_time_scale(moments: list[float]) -> None:
    scale = svg.time(moments)
    assert all(0 <= scale.position(moment) <= 1 for moment in moments)
    assert all(map(scale.format, scale.ticks()))


def test_time_ticks_fall_on_round_clock_times() -> None:
    scale = svg.time([0, 1500])
    assert [scale.format(tick) for tick in scale.ticks()] == [
        "00:00:00",
        "00:05:00",
        "00:10:00",
        "00:15:00",
        "00:20:00",
        "00:25:00",
    ]


def test_text_is_escaped() -> None:
    scale = svg.linear([1], str)
    frame = svg.Frame("<t>", scale, ["<lane>"], x_title="<x>")
    frame.mark(0.5, 0, "circle", "red", "</title><script>")
    frame.limit(0.5, "<limit>")
    text = tostring(frame.root, encoding="unicode")
    assert "<script" not in text
    assert text.count("&lt;") == 6


def test_a_limit_beyond_the_chart_is_left_out() -> None:
    frame = svg.Frame("t", svg.linear([1], str), svg.linear([1], str), x_title="x")
    before = len(frame.root)
    frame.limit(2, "far")
    assert len(frame.root) == before
