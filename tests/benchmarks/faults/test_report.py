"""Counters become words: what the router counted, and which alerts that would be."""

from __future__ import annotations

import pytest
from benchmarks.faults.report import alerts, faulty_turns
from benchmarks.faults.run import Facts
from benchmarks.faults.scrape import rose

HIT = "kvdiag_turns_total{cause=remote_hit,turn=2-4}"
STALE = "kvdiag_turns_total{cause=missing_metadata,detail=stale,turn=2-4}"
SUSPECT = "decode: kvdiag_expiries_total{kind=read_after_release,role=decode}"
DROPPED = "kvdiag_dropped_events_total{sink=jsonl}"


def facts(router: dict[str, float], engines: dict[str, float] | None = None) -> Facts:
    return Facts(requests=1, errors=0, compared=1, different=0, seconds=1.0, router=router, engines=engines or {})


@pytest.mark.parametrize(
    ("router", "engines", "words"),
    [
        ({HIT: 3.0}, {}, []),
        ({HIT: 3.0, STALE: 2.0}, {}, ["missing_metadata/stale 2"]),
        ({HIT: 3.0, DROPPED: 4.0}, {f"prefill: {DROPPED}": 5.0}, ["dropped records 9"]),
    ],
    ids=["all well", "a fault", "telemetry lost records"],
)
def test_what_was_counted_is_said(router: dict[str, float], engines: dict[str, float], words: list[str]) -> None:
    assert faulty_turns(facts(router, engines)) == words


@pytest.mark.parametrize(
    ("router", "engines", "names"),
    [
        ({HIT: 3.0}, {}, []),
        ({HIT: 99.0, STALE: 1.0}, {}, []),
        ({HIT: 3.0, STALE: 1.0}, {}, ["KvdiagMissingMetadata"]),
        ({}, {SUSPECT: 1.0}, ["KvdiagSuspectKv"]),
    ],
    ids=["all well", "within the budget", "above the budget", "freed blocks were read"],
)
def test_alerts_follow_the_budgets(router: dict[str, float], engines: dict[str, float], names: list[str]) -> None:
    assert alerts(facts(router, engines)) == names


def test_a_counter_that_fell_was_set_back_by_a_restart() -> None:
    assert rose({"a": 5.0, "b": 2.0}, {"a": 1.0, "b": 2.0, "c": 3.0}) == {"a": 1.0, "c": 3.0}
