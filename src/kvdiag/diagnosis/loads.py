"""Queues and cache pressure, from the periodic lines of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvdiag.diagnosis.engines import EngineLog
    from kvdiag.diagnosis.series import LoadSample

# The lines come every 10 s: three in a row are a queue that stands, not a burst.
_STANDING: Final = 3
_MIN_WAITING: Final = 4
_WAITING_SHARE: Final = 0.25
_FULL: Final = 95.0
# Fewer running requests in a fuller cache: something else holds the blocks.
_THINNED: Final = 0.7


@dataclass(frozen=True, slots=True)
class Congestion:
    """A queue that stood, and what was short. `waiting` is the most that waited at once."""

    cause: str
    detail: str
    samples: list[LoadSample]
    waiting: int


def congestion(engine: EngineLog) -> list[Congestion]:
    """Return the standing queues of an engine, one for each of its data-parallel ranks."""
    found = (_judge(engine, series.samples) for series in engine.loads.values())
    return [item for item in found if item is not None]


def _judge(engine: EngineLog, samples: Sequence[LoadSample]) -> Congestion | None:
    standing = [sample for run in _runs(samples) if len(run) >= _STANDING for sample in run]
    preempted = [sample for sample in samples if sample.preempted]
    if preempted:
        return Congestion("kv_pressure", "preempted", preempted, max(sample.waiting for sample in preempted))
    if not standing:
        return None
    worst = sorted(standing, key=lambda sample: (-(sample.usage or 0.0), -sample.waiting))
    waiting = max(sample.waiting for sample in standing)
    if (worst[0].usage or 0.0) >= _FULL:
        return Congestion("kv_pressure", _holder(engine, samples), worst, waiting)
    worst.sort(key=lambda sample: -sample.waiting)
    return Congestion("queueing", "decode" if engine.role == "decode" else "prefill", worst, waiting)


def _runs(samples: Sequence[LoadSample]) -> Iterator[list[LoadSample]]:
    run: list[LoadSample] = []
    for sample in samples:
        if sample.waiting - sample.deferred >= max(_MIN_WAITING, sample.running * _WAITING_SHARE):
            run.append(sample)
        else:
            yield run
            run = []
    yield run


def _holder(engine: EngineLog, samples: Sequence[LoadSample]) -> str:
    """Tell who holds a full cache: what runs, or blocks kept for later turns, beside which ever less can run."""
    if engine.role == "decode" and engine.config is not None and not engine.config.bidirectional:
        return "capacity"
    most = 0
    for sample in samples:
        most = max(most, sample.running)
        if (sample.usage or 0.0) >= _FULL and sample.running <= most * _THINNED:
            return "retained_blocks"
    return "capacity"
