"""Queues and cache pressure, from the periodic lines of an engine."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvdiag.diagnosis.engines import EngineLog
    from kvdiag.diagnosis.series import LoadSample

# The lines come every 10 s: three in a row are a queue that stands, not a burst.
_STANDING: Final = 3
_MIN_WAITING: Final = 4
_WAITING_SHARE: Final = 0.25
_FULL: Final = 95.0
_WHOLE: Final = 100.0
# Nothing runs, so a slot is free: who waits all the same waits for blocks.
_BLOCKED: Final = 2
# A full cache makes any queue one for blocks: it need not be long, but stay a minute or double.
_STAYING: Final = 6
_GROWN: Final = 2
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


def is_short_of_blocks(engine: EngineLog) -> bool:
    """Tell whether requests of an engine waited for blocks, or were thrown out for them."""
    return bool(engine.notes.get("preempted")) or any(item.cause == "kv_pressure" for item in congestion(engine))


def _judge(engine: EngineLog, samples: Sequence[LoadSample]) -> Congestion | None:
    standing = _lasting(samples, _is_queue, _STANDING) or _starved(samples)
    blocked = _lasting(samples, _is_blocked, _BLOCKED)
    preempted = [sample for sample in samples if sample.preempted]
    if preempted:
        return Congestion("kv_pressure", "preempted", preempted, max(sample.waiting for sample in preempted))
    if blocked:
        held = engine.role == "decode" and _retains(engine)
        waiting = max(sample.waiting for sample in blocked)
        return Congestion("kv_pressure", "retained_blocks" if held else "capacity", blocked, waiting)
    if not standing:
        return None
    worst = sorted(standing, key=lambda sample: (-(sample.usage or 0.0), -sample.waiting))
    waiting = max(sample.waiting for sample in standing)
    if (worst[0].usage or 0.0) >= _FULL or any(_has_no_room(engine, sample) for sample in worst):
        return Congestion("kv_pressure", _holder(engine, samples), worst, waiting)
    worst.sort(key=lambda sample: -sample.waiting)
    return Congestion("queueing", "decode" if engine.role == "decode" else "prefill", worst, waiting)


def _lasting(samples: Sequence[LoadSample], holds: Callable[[LoadSample], bool], least: int) -> list[LoadSample]:
    """Return the samples of every stretch of at least so many in a row for which something holds."""
    return [sample for stretch in _stretches(samples, holds) if len(stretch) >= least for sample in stretch]


def _stretches(samples: Sequence[LoadSample], holds: Callable[[LoadSample], bool]) -> Iterator[list[LoadSample]]:
    return (list(stretch) for fits, stretch in itertools.groupby(samples, holds) if fits)


def _starved(samples: Sequence[LoadSample]) -> list[LoadSample]:
    """Return the samples of every queue at a full cache, short as it may be beside what runs, that stayed or grew."""
    return [
        sample
        for stretch in _stretches(samples, _waits_for_blocks)
        if len(stretch) >= _STAYING
        or (len(stretch) >= _STANDING and stretch[-1].waiting >= stretch[0].waiting * _GROWN)
        for sample in stretch
    ]


def _is_queue(sample: LoadSample) -> bool:
    return sample.waiting - sample.deferred >= max(_MIN_WAITING, sample.running * _WAITING_SHARE)


def _has_no_room(engine: EngineLog, sample: LoadSample) -> bool:
    """Tell whether what runs on a decode that retains nothing leaves no room for one more of its size."""
    alone = engine.role == "decode" and not _retains(engine)
    return alone and sample.running > 1 and (sample.usage or 0.0) * (sample.running + 1) > _WHOLE * sample.running


def _waits_for_blocks(sample: LoadSample) -> bool:
    return (sample.usage or 0.0) >= _FULL and sample.waiting - sample.deferred >= _MIN_WAITING


def _is_blocked(sample: LoadSample) -> bool:
    return sample.running == 0 and sample.waiting > sample.deferred


def _retains(engine: EngineLog) -> bool:
    return engine.config is None or engine.config.bidirectional


def _holder(engine: EngineLog, samples: Sequence[LoadSample]) -> str:
    """Tell who holds a full cache: what runs, or blocks kept for later turns, beside which ever less can run."""
    if engine.role == "decode" and not _retains(engine):
        return "capacity"
    most = 0
    for sample in samples:
        most = max(most, sample.running)
        if (sample.usage or 0.0) >= _FULL and sample.running <= most * _THINNED:
            return "retained_blocks"
    return "capacity"
