"""Metrics pages, ours and hostile ones."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.doctor.samples import Samples

PAGE = """# HELP t_total Turns.
# TYPE t_total counter
t_total{cause="a",turn="1"} 2
t_total{cause="a",turn="2-4"} 3
t_total{cause="b",turn="1"} 5
info{role="prefill",empty=""} 1
"""


def test_sums_by_labels() -> None:
    samples = Samples.parse(PAGE)
    assert samples.total("t_total") == 10
    assert samples.total("t_total", cause="a") == 5
    assert samples.by("t_total", "cause") == {("a",): 5, ("b",): 5}


@pytest.mark.parametrize("name", ["absent", "t", "t_created"])
def test_an_absent_series_is_none_and_not_zero(name: str) -> None:
    assert Samples.parse(PAGE).total(name) is None


def test_labels_with_these_values_only() -> None:
    assert Samples.parse(PAGE).total("t_total", cause="c") is None


@pytest.mark.parametrize(("key", "value"), [("role", "prefill"), ("empty", None), ("absent", None)])
def test_labels_of_info_series(key: str, value: str | None) -> None:
    assert Samples.parse(PAGE).label("info", key) == value


@given(st.text(max_size=200))
def test_any_text_parses_or_is_refused(page: str) -> None:
    with contextlib.suppress(ValueError, KeyError, IndexError):
        Samples.parse(page)
