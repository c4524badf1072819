"""What two scrapes, a few seconds apart, say about a deployment: the frame that `kvdiag watch` shows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvdiag.doctor.samples import Samples
    from kvdiag.doctor.site import Service, Site


class CauseRow(msgspec.Struct, kw_only=True):
    """Turns of one cause since the last scrape, and since the router started."""

    cause: str
    detail: str
    turns: float
    total: float


class EngineRow(msgspec.Struct, kw_only=True):
    """One engine. None where it does not tell."""

    name: str
    up: bool
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    """Share of the cache in use."""
    retained_blocks: float | None = None
    retained_bytes: float | None = None
    read_bytes_per_s: float | None = None
    """Read by this engine: back from decode on prefill, the hand-off on decode."""
    external_tokens_per_s: float | None = None
    """Prompt tokens whose KV came from elsewhere."""
    failed_transfers: float | None = None
    """Since the last scrape."""


class Frame(msgspec.Struct, kw_only=True):
    """The state of a site. Rates are per second over `seconds`, times in seconds; None where no service tells."""

    seconds: float
    router: str | None = None
    router_up: bool = False
    turns_per_s: float | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    reused: float | None = None
    """Share of later turns."""
    lost_tokens_per_s: float | None = None
    handles: float | None = None
    causes: list[CauseRow] = msgspec.field(default_factory=list)
    engines: list[EngineRow] = msgspec.field(default_factory=list)


REUSED: Final = frozenset({"local_hit", "remote_hit"})
_BYTES: Final = ("kvdiag_transfer_bytes_total", "vllm:nixl_bytes_transferred_sum")
_FAILED: Final = ("kvdiag_transfer_failures_total", "vllm:nixl_num_failed_transfers_total")


@dataclass(frozen=True, slots=True)
class _Change:
    """How one service's counters moved."""

    before: Samples | None
    after: Samples | None
    seconds: float

    def risen(self, name: str, **labels: str) -> float | None:
        """Return by how much; a counter that fell was restarted and counts from 0."""
        now = self.after.total(name, **labels) if self.after else None
        was = self.before.total(name, **labels) if self.before else None
        if now is None or was is None:
            return None
        return now - was if now >= was else now

    def first_risen(self, names: Iterable[str]) -> float | None:
        return next((value for name in names if (value := self.risen(name)) is not None), None)

    def rate(self, value: float | None) -> float | None:
        return None if value is None or self.seconds <= 0 else value / self.seconds

    def gauge(self, name: str) -> float | None:
        return self.after.total(name) if self.after else None


def frame(before: Site, after: Site, seconds: float) -> Frame:
    """Return what changed between two looks at the same site, `seconds` apart."""
    earlier = {service.name: service.samples for service in before.services}
    changes = {service.name: _Change(earlier.get(service.name), service.samples, seconds) for service in after.services}
    shown = Frame(seconds=seconds, engines=[_engine(engine, changes[engine.name]) for engine in after.engines])
    if after.router is not None:
        _fill_router(shown, after.router, changes[after.router.name])
    return shown


def quantile(share: float, buckets: Iterable[tuple[float, float]]) -> float | None:
    """Return a quantile from cumulative (upper bound, count) pairs, interpolated as Prometheus does; None if empty."""
    ordered = sorted(buckets)
    total = ordered[-1][1] if ordered else 0.0
    if total <= 0:
        return None
    low = below = 0.0
    for bound, count in ordered:
        if count >= share * total:
            return low if math.isinf(bound) else low + (bound - low) * (share * total - below) / (count - below)
        low, below = bound, count
    return low


def _engine(engine: Service, change: _Change) -> EngineRow:
    return EngineRow(
        name=engine.name,
        up=engine.problem is None,
        running=change.gauge("vllm:num_requests_running"),
        waiting=change.gauge("vllm:num_requests_waiting"),
        kv_usage=change.gauge("vllm:kv_cache_usage_perc"),
        retained_blocks=change.gauge("kvdiag_retained_blocks"),
        retained_bytes=change.gauge("kvdiag_retained_bytes"),
        read_bytes_per_s=change.rate(change.first_risen(_BYTES)),
        external_tokens_per_s=change.rate(
            change.risen("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
        ),
        failed_transfers=change.first_risen(_FAILED),
    )


def _fill_router(shown: Frame, router: Service, change: _Change) -> None:
    shown.router, shown.router_up = router.name, router.problem is None
    shown.turns_per_s = change.rate(change.risen("kvdiag_turns_total"))
    shown.ttft_p50_s, shown.ttft_p95_s = (quantile(share, _ttft(change)) for share in (0.5, 0.95))
    shown.lost_tokens_per_s = change.rate(change.risen("kvdiag_prompt_tokens_total", source="lost"))
    shown.handles = change.gauge("kvdiag_router_handles")
    shown.causes = sorted(_causes(change), key=lambda row: (-row.turns, -row.total, row.cause, row.detail))
    later = [(row, row.turns) for row in shown.causes if row.cause != "first_turn"]
    turns = sum(count for _, count in later)
    shown.reused = sum(count for row, count in later if row.cause in REUSED) / turns if turns else None


def _causes(change: _Change) -> Iterator[CauseRow]:
    if change.after is None:
        return
    was = change.before.by("kvdiag_turns_total", "cause", "detail") if change.before else {}
    for (cause, detail), total in change.after.by("kvdiag_turns_total", "cause", "detail").items():
        earlier = was.get((cause, detail), 0.0)
        if total:
            turns = total - earlier if total >= earlier else total
            yield CauseRow(cause=cause, detail=detail, turns=turns, total=total)


def _ttft(change: _Change) -> list[tuple[float, float]]:
    name = "kvdiag_turn_ttft_seconds_bucket"
    if change.after is None:
        return []
    was = change.before.by(name, "le") if change.before else {}
    return [
        (float(bound), max(0.0, count - was.get((bound,), 0.0)))
        for (bound,), count in change.after.by(name, "le").items()
    ]
