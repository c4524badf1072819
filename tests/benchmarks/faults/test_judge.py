"""A report is held against what was expected, column by column."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.faults.judge import judge, without
from benchmarks.faults.scenario import HEALTHY, Expected

STALE = {"cause": "missing_metadata", "detail": "stale", "confidence": "certain", "turns": 2}
SLOW = {"cause": "slow_transfer", "detail": None, "confidence": "likely", "turns": 1}
MAYBE = {"cause": "client", "detail": "slow", "confidence": "possible", "turns": 1}
FAILED = {"cause": "upstream_error", "detail": None, "confidence": "certain", "turns": 1}
EXPECTED = Expected("missing_metadata/stale", turns=2)


def report(*findings: dict[str, Any]) -> dict[str, Any]:
    return {"verdict": findings[0] if findings else {"cause": "healthy"}, "findings": list(findings)}


@pytest.mark.parametrize(
    ("said", "expected", "missed"),
    [
        (report(STALE), EXPECTED, []),
        (report(STALE, SLOW, MAYBE), EXPECTED, []),
        (report(SLOW), HEALTHY, ["verdict slow_transfer", "false alarm slow_transfer"]),
        (report(STALE, FAILED), EXPECTED, ["false alarm upstream_error"]),
        (report(STALE | {"detail": "consumed", "turns": 1}), EXPECTED, ["detail consumed", "1 turns, not 2"]),
        (report(), EXPECTED, ["verdict healthy", "None turns, not 2"]),
        (report(FAILED, STALE), Expected("missing_metadata", or_else=("upstream_error",)), []),
    ],
    ids=["right", "noise beside it", "noise alone", "a false alarm", "wrong detail", "overlooked", "another headline"],
)
def test_what_differs_is_named(said: dict[str, Any], expected: Expected, missed: list[str]) -> None:
    assert judge(said, expected).missed == missed


def test_where_nothing_is_expected_nothing_is_missed() -> None:
    assert judge(report(STALE), None).missed == []


def test_noise_is_taken_out_of_verdict_and_findings() -> None:
    noise = {"slow_transfer"}
    assert without(noise, report(SLOW, MAYBE, STALE)) == report(STALE) | {"findings": [MAYBE, STALE]}
    assert without(noise, report(SLOW))["verdict"]["cause"] == "healthy"
    assert without(noise, report(STALE, SLOW)) == report(STALE)
