"""The periodic lines of an engine, kept in bounded space."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvdiag.diagnosis.report import Evidence

_MAX_SAMPLES: Final = 2048
# No counter, time or size of a sound line comes near.
_MEASURE: Final = 1e12
_DEFERRED: Final = re.compile(r"Deferred: (\d+) reqs")
_USAGE: Final = re.compile(r"KV cache usage: ([\d.]+)%")
_PREFIX: Final = re.compile(r"%, Prefix cache hit rate: ([\d.]+)%")
_EXTERNAL: Final = re.compile(r"External prefix cache hit rate: ([\d.]+)%")
_PREEMPTED: Final = re.compile(r"Preemptions: (\d+)")

_Sample = TypeVar("_Sample")


@dataclass(slots=True)
class Series(Generic[_Sample]):
    """Samples in order; when there are too many, every second one is dropped and only every 2nd, 4th.. is kept."""

    samples: list[_Sample] = field(default_factory=list)
    stride: int = 1
    seen: int = 0

    def add(self, sample: _Sample) -> None:
        """Append a sample, thinning out when the bound is reached."""
        if self.seen % self.stride == 0:
            self.samples.append(sample)
        self.seen += 1
        if len(self.samples) > _MAX_SAMPLES:
            del self.samples[1::2]
            self.stride *= 2


class LoadSample(NamedTuple):
    """One `Engine 000: Avg prompt throughput ..` line. Rates are tokens a second, shares are per cent."""

    evidence: Evidence
    stamp: float | None
    prompt_rate: float
    generation_rate: float
    running: int
    waiting: int
    deferred: int
    """Part of `waiting`: held back for a reason other than a slot, a remote read for one."""
    usage: float | None
    external: float | None
    prefix: float | None
    preempted: int


def load_sample(data: dict[str, Any], stamp: float | None, evidence: Evidence) -> LoadSample:
    """Return the sample that a `load` fact holds."""
    rest = data["rest"] or ""
    if (
        max(float(data["prompt"]), float(data["generation"]), float(data["running"]), float(data["waiting"] or 0))
        > _MEASURE
    ):
        raise ValueError(data["running"])
    return LoadSample(
        evidence,
        stamp,
        float(data["prompt"]),
        float(data["generation"]),
        int(data["running"]),
        int(data["waiting"] or 0),
        int(_number(_DEFERRED, rest) or 0),
        _number(_USAGE, rest),
        _number(_EXTERNAL, rest),
        _number(_PREFIX, rest),
        int(_number(_PREEMPTED, rest) or 0),
    )


def _number(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return float(match[1]) if match else None


class TransferSample(NamedTuple):
    """One `KV Transfer metrics` line of the NIXL connector. Times are milliseconds, sizes megabytes."""

    evidence: Evidence
    stamp: float | None
    succeeded: int
    mean_ms: float
    p90_ms: float
    post_ms: float
    mean_mb: float
    failed: int
    expired: int
    late_notifications: int


_NAMES: Final = (
    "Num successful transfers",
    "Avg xfer time (ms)",
    "P90 xfer time (ms)",
    "Avg post time (ms)",
    "Avg MB per transfer",
    "Num failed transfers",
    "Num KV expired reqs",
    "Num notifs after expiry",
)


def transfer_sample(pairs: str, stamp: float | None, evidence: Evidence) -> TransferSample | None:
    """Return the sample in `k=v, ..`, None where another connector (Mooncake, LMCache, MoRIIO) wrote it."""
    found = dict(_pairs(pairs))
    if _NAMES[0] not in found:
        return None
    values = [found.get(name, 0.0) for name in _NAMES]
    succeeded, mean, p90, post, size, failed, expired, late = values
    return TransferSample(evidence, stamp, int(succeeded), mean, p90, post, size, int(failed), int(expired), int(late))


def _pairs(text: str) -> Iterator[tuple[str, float]]:
    for pair in text.split(","):
        name, _, value = pair.partition("=")
        try:
            number = float(value)
        except ValueError:
            continue
        if 0 <= number < _MEASURE:
            yield name.strip(), number
