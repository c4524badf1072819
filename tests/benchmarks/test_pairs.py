"""No ratio without pairs."""

from __future__ import annotations

import pytest
from benchmarks import pairs


@pytest.mark.parametrize(
    ("ours", "theirs", "said", "median"),
    [
        ([2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 1.0, 2.0, 2.0, 2.0], "4 [2..5]", 4.0),
        ([2.0, 4.0, 6.0, 8.0], [1.0, 1.0, 2.0, 2.0], "no ratio: 4 of 5 pairs", None),
        ([2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 1.0, 0.0, 2.0, 2.0], "no ratio: 4 of 5 pairs", None),
        ([], [], "no ratio: 0 of 5 pairs", None),
    ],
    ids=["five pairs", "four pairs", "a side that did nothing is no pair", "nothing"],
)
def test_a_ratio_is_taken_within_pairs_and_from_enough_of_them(
    ours: list[float], theirs: list[float], said: str, median: float | None
) -> None:
    assert pairs.ratio(ours, theirs) == said
    assert pairs.median_ratio(ours, theirs) == median


def test_values_of_different_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        pairs.ratio([1.0, 2.0], [1.0])


def test_the_machine_and_what_is_installed_are_named() -> None:
    assert "cores" in pairs.machine()
    assert pairs.versions("pytest", "no-such-thing") == f"pytest {pytest.__version__}, no-such-thing not installed"
