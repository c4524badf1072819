"""Queues that stand, and what is short, from periodic lines."""

from __future__ import annotations

import pytest

from kvdiag.diagnosis.engines import EngineLog
from kvdiag.diagnosis.loads import congestion
from kvdiag.diagnosis.parameters import EngineConfig
from kvdiag.diagnosis.report import Evidence
from kvdiag.diagnosis.series import LoadSample, Series


def _engine(*rows: tuple[int, int, float], deferred: int = 0, role: str = "decode") -> EngineLog:
    """Return an engine whose lines show (running, waiting, cache usage)."""
    engine = EngineLog("engine.log", forced="decode" if role == "decode" else "prefill")
    series: Series[LoadSample] = Series()
    engine.loads["000"] = series
    for number, (running, waiting, usage) in enumerate(rows):
        evidence = Evidence(path="engine.log", line=number + 1, text="")
        series.add(LoadSample(evidence, 10.0 * number, 0.0, 50.0, running, waiting, deferred, usage, None, None, 0))
    return engine


@pytest.mark.parametrize(
    ("engine", "found"),
    [
        (_engine((40, 0, 88), (30, 20, 95), (20, 40, 98), (14, 52, 99.6)), [("kv_pressure", "retained_blocks")]),
        (_engine((9, 2, 86), (17, 11, 99), (17, 17, 99.8), (17, 23, 99.8)), [("kv_pressure", "capacity")]),
        (_engine((64, 20, 60), (64, 30, 61), (64, 40, 62)), [("queueing", "decode")]),
        (_engine((2, 8, 20), (2, 9, 20), (2, 12, 20), role="prefill"), [("queueing", "prefill")]),
        (_engine((0, 4, 89), (0, 4, 89), (0, 2, 86)), [("kv_pressure", "retained_blocks")]),
        (_engine((0, 2, 80), (0, 2, 80), role="prefill"), [("kv_pressure", "capacity")]),
        (_engine((0, 2, 80), (1, 1, 80), (0, 2, 80)), []),
        (_engine((0, 2, 80), (0, 2, 80), deferred=2), []),
        (_engine((97, 0, 98), (97, 6, 99.8), (97, 12, 99.8), (97, 18, 99.8)), [("kv_pressure", "capacity")]),
        (_engine(*[(60, 9, 99.3), (62, 11, 99.0)] * 3), [("kv_pressure", "capacity")]),
        (_engine(*[(60, 9, 90), (62, 11, 90)] * 3), []),
        (_engine(*[(60, 9, 99.3), (62, 11, 99.0)] * 3, deferred=9), []),
        (_engine((97, 12, 99), (97, 14, 99), (97, 9, 99), (97, 4, 99)), []),
        (_engine((97, 4, 99), (97, 12, 99), (97, 0, 99), (97, 4, 99), (97, 12, 99)), []),
        (_engine((9, 3, 41), (9, 3, 41), (9, 3, 41), (9, 3, 41)), []),
        (_engine((8, 30, 99), (8, 0, 50), (8, 30, 99), (8, 0, 50)), []),
        (_engine((8, 9, 40), (8, 9, 40), (8, 9, 40), deferred=8), []),
        (_engine(), []),
    ],
)
def test_a_queue_is_named_by_what_is_short(engine: EngineLog, found: list[tuple[str, str]]) -> None:
    assert [(item.cause, item.detail) for item in congestion(engine)] == found


@pytest.mark.parametrize(
    ("row", "bidirectional", "found"),
    [
        ((3, 60, 78.5), False, ("kv_pressure", "capacity")),
        ((3, 60, 78.5), True, ("queueing", "decode")),
        ((3, 60, 74.0), False, ("queueing", "decode")),
        ((1, 60, 60.0), False, ("queueing", "decode")),
    ],
    ids=["no room for another", "what is retained may make room", "room for another", "perhaps one slot only"],
)
def test_a_decode_that_retains_nothing_is_full_where_one_more_does_not_fit(
    row: tuple[int, int, float], found: tuple[str, str], *, bidirectional: bool
) -> None:
    engine = _engine(row, row, row)
    config = EngineConfig("NixlConnector", "d", "decode", bidirectional, None, None, None)
    engine.configs.append((config, Evidence(path="engine.log", line=1, text="")))
    assert [(item.cause, item.detail) for item in congestion(engine)] == [found]


def test_the_worst_moment_is_cited_first() -> None:
    (item,) = congestion(_engine((64, 20, 60), (64, 30, 61), (64, 40, 62)))

    assert (item.samples[0].evidence.line, item.waiting) == (3, 40)


def test_a_series_stays_bounded_and_keeps_its_ends() -> None:
    series: Series[int] = Series()
    for number in range(100_000):
        series.add(number)

    assert len(series.samples) <= 2049
    assert series.seen == 100_000
    assert series.samples[0] == 0
    assert series.samples[-1] > 99_000 - series.stride
