"""Which finding comes first."""

from __future__ import annotations

import pytest

from kvdiag.diagnosis.findings import Tally, ranked


@pytest.mark.parametrize(
    ("tallies", "first"),
    [
        ([Tally("queueing", None, "likely", 1), Tally("client", None, "certain", 1)], "queueing"),
        (
            [Tally("queueing", None, "likely", 1), Tally("slow_transfer", None, "likely", 1, lost_seconds=9.0)],
            "slow_transfer",
        ),
        ([Tally("queueing", None, "possible", 99), Tally("client", None, "likely", 1)], "client"),
        (
            [Tally("slow_transfer", None, "likely", 1, lost_seconds=99.0), Tally("suspect_kv", None, "certain", 1)],
            "suspect_kv",
        ),
        ([Tally("queueing", None, "likely", 1), Tally("suspect_kv", None, "possible", 1)], "queueing"),
    ],
    ids=["the dearer weight", "measured seconds", "what is sure", "a wrong answer", "a wrong answer, merely possible"],
)
def test_the_first_finding(tallies: list[Tally], first: str) -> None:
    assert ranked(tallies)[0].cause == first
    assert ranked(tallies[::-1])[0].cause == first
