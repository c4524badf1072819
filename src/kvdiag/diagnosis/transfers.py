"""Slow transfers, from the periodic lines of the engine that reads."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from kvdiag.diagnosis.split import TELLING_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvdiag.causes import Direction
    from kvdiag.diagnosis.engines import EngineLog
    from kvdiag.diagnosis.series import TransferSample

_INTERVAL_MS: Final = 10_000.0
_TOO_LONG_MS: Final = 2000.0
# A read that takes this long is felt in the time to first token, whatever it moves.
_FELT_MS: Final = 400.0
_FELT_WITH_HINT_MS: Final = 150.0
# Below a tenth of what a 100 Gbit/s fabric carries.
_SLOW_MB_S: Final = 1000.0
_MB: Final = 1e6
_MANY: Final = 3
_STANDING: Final = 5
_SHARE: Final = 0.3
_BASELINE_FACTOR: Final = 5.0
_BASELINE_SAMPLES: Final = 3
_BASELINE_MS: Final = 100.0


@dataclass(frozen=True, slots=True)
class SlowTransfers:
    """Slow reads of one engine. `seconds` is the time that they took in total."""

    direction: Direction
    samples: list[TransferSample]
    transfers: int
    seconds: float
    lasting: bool
    """Most reads, or many, were slow; else it was an exception."""


def slow_transfers(engine: EngineLog) -> SlowTransfers | None:
    """Return the slow reads of an engine, None where it reads at a fitting pace or nothing tells.

    Only the reader counts transfers: prefill's lines are reads back from decode, decode's are hand-offs.
    """
    samples = [sample for sample in engine.transfers.samples if sample.succeeded and sample.mean_ms > 0]
    felt = _FELT_WITH_HINT_MS if engine.notes.get("slow_transport") else _FELT_MS
    slow = _telling([sample for sample in samples if _is_slow(sample, felt)], len(samples))
    slow = slow or _telling(_slower_than_before(samples), len(samples))
    if engine.role not in {"prefill", "decode"} or not slow:
        return None
    return SlowTransfers(
        "decode_to_prefill" if engine.role == "prefill" else "prefill_to_decode",
        slow,
        sum(sample.succeeded for sample in slow),
        sum(sample.succeeded * sample.mean_ms for sample in slow) / 1000,
        lasting=len(slow) >= min(_MANY, len(samples) * _SHARE),
    )


def _telling(slow: list[TransferSample], of: int) -> list[TransferSample]:
    """Return the intervals that tell of the transport: what little takes long has waited for a CPU, unless all does."""
    large = [sample for sample in slow if sample.mean_mb * _MB >= TELLING_BYTES]
    standing = len(slow) >= max(_STANDING, of / 2)
    return large or (slow if standing else [])


def _is_slow(sample: TransferSample, felt_ms: float) -> bool:
    """Judge one interval.

    The line's own throughput divides by the sum of times that may overlap. So the benefit of the doubt: all of an
    interval's transfers are taken to have run at once, unless each took so long that overlap is no excuse.
    """
    if max(sample.mean_ms, sample.post_ms) >= _TOO_LONG_MS:
        return sample.post_ms >= _TOO_LONG_MS or sample.mean_mb / sample.mean_ms * 1000 < _SLOW_MB_S
    if sample.mean_ms < felt_ms:
        return False
    return sample.succeeded * sample.mean_mb / sample.mean_ms * 1000 < _SLOW_MB_S


def _slower_than_before(samples: Sequence[TransferSample]) -> list[TransferSample]:
    """Return the intervals whose rate fell far below what this very engine had shown before."""
    head = samples[: max(_BASELINE_SAMPLES, len(samples) // 4)]
    if len(samples) < 2 * _BASELINE_SAMPLES:
        return []
    baseline = median(sample.mean_ms / max(sample.mean_mb, 1.0) for sample in head)
    return [
        sample
        for sample in samples[len(head) :]
        if sample.mean_ms >= _BASELINE_MS
        and sample.mean_ms / max(sample.mean_mb, 1.0) > baseline * _BASELINE_FACTOR
        and sample.succeeded * sample.mean_ms <= _INTERVAL_MS
    ]
