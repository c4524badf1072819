"""Recorded series become words: what was counted, and which alerts of the shipped rules fire."""

from __future__ import annotations

import pytest
from benchmarks.faults.metrics import Seen, exported, installed, within_budget
from benchmarks.faults.recording import Series


def turns(cause: str, detail: str, count: float, job: str = "kvdiag-router") -> Series:
    labels = {"cause": cause, "detail": detail, "turn": "2-4", "job": job, "instance": "router"}
    return Series("kvdiag_turns_total", labels, [0.0, count], counter=True)


def dropped(instance: str, count: float) -> Series:
    labels = {"sink": "jsonl", "job": "kvdiag-router", "instance": instance}
    return Series("kvdiag_dropped_events_total", labels, [0.0, count], counter=True)


HITS = turns("remote_hit", "", 3)
STALE = turns("missing_metadata", "stale", 2)
RARE = turns("client", "aborted", 1)


@pytest.mark.parametrize(
    ("series", "faults", "alerts"),
    [
        ([HITS], [], ()),
        ([HITS, STALE], ["missing_metadata/stale 2"], ("KvdiagMissingMetadata",)),
        ([HITS, RARE], ["client/aborted 1"], ()),
        ([HITS, dropped("router", 4), dropped("prefill", 5)], ["dropped records 9"], ("KvdiagEventsDropped",)),
    ],
    ids=["all well", "a fault", "a fault below its budget", "telemetry lost records"],
)
def test_what_was_counted_is_said(series: list[Series], faults: list[str], alerts: tuple[str, ...]) -> None:
    seen = installed(series)
    assert (seen.faults, seen.alerts) == (faults, alerts)


def test_the_log_exporter_is_judged_apart() -> None:
    series = [HITS, turns("missing_metadata", "stale", 2, job="kvdiag-export")]
    assert installed(series).faults == []
    assert exported(series).faults == ["missing_metadata/stale 2"]


def transfers(seconds_each: float) -> list[Series]:
    """Return a transfer of a megabyte every two seconds: five as ever, then five that take so long."""
    labels = {"direction": "decode_to_prefill", "job": "vllm-prefill", "instance": "prefill"}
    seconds = [0.01 * n for n in range(6)] + [0.05 + seconds_each * n for n in range(1, 6)]
    values = {"bytes_total": [1e6 * n for n in range(11)], "seconds_sum": seconds, "seconds_count": [*range(11)]}
    return [Series(f"kvdiag_transfer_{name}", labels, [*row], counter=True, calm=6) for name, row in values.items()]


@pytest.mark.parametrize(("seconds_each", "alerts"), [(0.01, ()), (0.5, ("KvdiagSlowTransfer",))])
def test_a_fault_is_compared_with_the_usual_state_before_it(seconds_each: float, alerts: tuple[str, ...]) -> None:
    assert installed(transfers(seconds_each)).alerts == alerts


def test_a_share_below_its_budget_needs_no_alert() -> None:
    share = installed([HITS, RARE]).share("client")
    assert share == pytest.approx(0.25)
    assert within_budget("client", share)
    assert not within_budget("suspect_kv", share)


def test_without_series_nothing_is_said() -> None:
    assert installed([]) == Seen()
