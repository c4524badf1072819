"""Slow reads, and what only looks slow."""

from __future__ import annotations

import pytest

from kvdiag.diagnosis.engines import EngineLog
from kvdiag.diagnosis.report import Evidence
from kvdiag.diagnosis.series import TransferSample, transfer_sample
from kvdiag.diagnosis.transfers import slow_transfers

_EVIDENCE = Evidence(path="p.log", line=1, text="")


def _engine(*rows: tuple[int, float, float], hint: bool = False) -> EngineLog:
    """Return a prefill log whose lines show (transfers, mean ms, mean MB)."""
    engine = EngineLog("p.log", forced="prefill")
    for count, mean, size in rows:
        engine.transfers.add(TransferSample(_EVIDENCE, None, count, mean, mean, 1.0, size, 0, 0, 0))
    if hint:
        engine.note("slow_transport", _EVIDENCE)
    return engine


@pytest.mark.parametrize(
    ("engine", "slow"),
    [
        (_engine((1, 4610, 2304), (1, 4650, 2304)), True),
        (_engine((1, 600, 120), (1, 620, 120)), True),
        (_engine((2, 11.2, 38.2), (2, 12.0, 38.2)), False),
        (_engine((24, 450, 96), (24, 460, 96)), False),
        (_engine((1, 900, 4000), (1, 900, 4000)), False),
        (_engine((1, 200, 40), (1, 210, 40)), False),
        (_engine((1, 200, 40), (1, 210, 40), hint=True), True),
        (_engine(*[(2, 20.0, 80.0)] * 6, *[(2, 320.0, 80.0)] * 6), True),
        (_engine(*[(2, 20.0, 80.0)] * 6, *[(2, 90.0, 320.0)] * 6), False),
        (_engine((0, 0, 0)), False),
    ],
)
def test_a_pace_is_slow_or_not(engine: EngineLog, slow: bool) -> None:  # noqa: FBT001 - a table
    assert (slow_transfers(engine) is not None) == slow


def test_only_the_reader_counts_so_its_role_gives_the_direction() -> None:
    engine = _engine((1, 4610, 2304))
    prefill = slow_transfers(engine)
    engine.forced = "decode"
    decode = slow_transfers(engine)

    assert prefill is not None
    assert decode is not None
    assert (prefill.direction, decode.direction) == ("decode_to_prefill", "prefill_to_decode")


def test_a_lone_slow_read_among_many_is_an_exception() -> None:
    found = slow_transfers(_engine(*[(1, 20.0, 80.0)] * 10, (1, 900.0, 80.0)))

    assert found is not None
    assert not found.lasting


def test_another_connectors_line_is_not_read_as_nixls() -> None:
    assert transfer_sample("Num puts=3, Avg put time (ms)=900.0", None, _EVIDENCE) is None


def test_a_line_of_an_older_release_leaves_newer_counters_at_zero() -> None:
    sample = transfer_sample("Num successful transfers=2, Avg xfer time (ms)=22.4", None, _EVIDENCE)

    assert sample is not None
    assert (sample.succeeded, sample.mean_ms, sample.expired) == (2, 22.4, 0)
