"""Rules on `/metrics` snapshots: counters name no request, so nothing here is ever certain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvdiag.causes import CAUSES, OUTCOMES
from kvdiag.diagnosis.findings import Tally
from kvdiag.diagnosis.snapshots import Scrapes, pair_up
from kvdiag.diagnosis.split import TELLING_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvdiag.causes import Confidence
    from kvdiag.diagnosis.casebook import Casebook

# Without an earlier snapshot a few events since the start are history, not an incident.
_SHARE_SINCE_START: Final = 0.01
_MIN_WAITING: Final = 4
_FULL: Final = 0.95
_SLOW_S: Final = 0.4
_SLOW_BYTES_S: Final = 1e9
_FAILED: Final = "vllm:nixl_num_failed_transfers_total"
_NOTIFICATIONS: Final = "vllm:nixl_num_failed_notifications_total"
_LATE: Final = "vllm:nixl_num_notifications_after_expiry_total"
_EXPIRED: Final = "vllm:nixl_num_kv_expired_reqs_total"
_PREEMPTED: Final = "vllm:num_preemptions_total"
_REQUESTS: Final = "vllm:request_success_total"
_READS: Final = "vllm:nixl_xfer_time_seconds_count"


def counted(book: Casebook) -> list[Tally]:
    """Return what the snapshots show."""
    found: list[Tally] = []
    for scrapes in pair_up([snapshot for engine in book.engines for snapshot in engine.snapshots]):
        for rule in _RULES:
            found += rule(scrapes)
    return found


def has_snapshots(book: Casebook) -> bool:
    """Tell whether there is a snapshot at all."""
    return any(engine.snapshots for engine in book.engines)


def _notable(scrapes: Scrapes, count: float) -> bool:
    return count > 0 and (scrapes.first is not None or count >= _SHARE_SINCE_START * scrapes.rise(_REQUESTS))


def _late_reads(scrapes: Scrapes) -> Iterator[Tally]:
    if (count := scrapes.rise(_LATE)) > 0:
        yield Tally.of("suspect_kv", "read_after_release", "likely", count, scrapes.lines(_LATE))


def _failures(scrapes: Scrapes) -> Iterator[Tally]:
    count = scrapes.rise(_FAILED) - scrapes.rise(_NOTIFICATIONS)
    if _notable(scrapes, count):
        yield Tally.of("transfer_failed", None, "likely", count, scrapes.lines(_FAILED))


def _expiries(scrapes: Scrapes) -> Iterator[Tally]:
    """On decode the counter rises with every conversation that ends."""
    count = scrapes.rise(_EXPIRED)
    if scrapes.role == "prefill" and _notable(scrapes, count):
        cause = "expired_remote_read" if scrapes.rise(_READS) else "expired_handoff"
        yield Tally.of(cause, None, "possible", count, scrapes.lines(_EXPIRED))


def _pressure(scrapes: Scrapes) -> Iterator[Tally]:
    preempted = scrapes.rise(_PREEMPTED)
    if _notable(scrapes, preempted):
        yield Tally.of("kv_pressure", "preempted", "likely", preempted, scrapes.lines(_PREEMPTED))
        return
    waiting, running = _waiting(scrapes), scrapes.level("vllm:num_requests_running") or 0.0
    if waiting < (_MIN_WAITING if _starved(scrapes) else max(_MIN_WAITING, running / 4)):
        return
    lines = Scrapes(scrapes.last).lines("vllm:num_requests_waiting")
    confidence: Confidence = "likely" if scrapes.first is not None else "possible"
    if _is_full(scrapes):
        yield Tally.of("kv_pressure", "capacity", confidence, waiting, lines)
    elif scrapes.role in {"prefill", "decode"}:
        yield Tally.of("queueing", scrapes.role, confidence, waiting, lines)


def _waiting(scrapes: Scrapes) -> float:
    """Return who waits for a slot or for blocks; deferred ones wait for something else, a remote read for one."""
    reasons = Scrapes(scrapes.last).series("vllm:num_requests_waiting_by_reason")
    deferred = sum(value for labels, value, _ in reasons if labels.get("reason") == "deferred")
    return (scrapes.level("vllm:num_requests_waiting") or 0.0) - deferred


def _is_full(scrapes: Scrapes) -> bool:
    usage = scrapes.level("vllm:kv_cache_usage_perc") or scrapes.level("vllm:gpu_cache_usage_perc") or 0.0
    return usage >= _FULL


def _starved(scrapes: Scrapes) -> bool:
    """Tell whether some waited at a full cache both times: short as it may be, their queue is one for blocks."""
    before = Scrapes(scrapes.first) if scrapes.first is not None else None
    return before is not None and all(_is_full(s) and _waiting(s) >= _MIN_WAITING for s in (before, scrapes))


def _slow_reads(scrapes: Scrapes) -> Iterator[Tally]:
    count, seconds = scrapes.rise(_READS), scrapes.rise("vllm:nixl_xfer_time_seconds_sum")
    moved = scrapes.rise("vllm:nixl_bytes_transferred_sum")
    direction = {"prefill": "decode_to_prefill", "decode": "prefill_to_decode"}.get(scrapes.role or "")
    telling = count > 0 and moved / count >= TELLING_BYTES
    if direction and telling and seconds / count >= _SLOW_S and moved / seconds < _SLOW_BYTES_S:
        lines = scrapes.lines("vllm:nixl_xfer_time_seconds_sum") + scrapes.lines("vllm:nixl_bytes_transferred_sum")
        tally = Tally.of("slow_transfer", direction, "likely", count, lines)
        tally.lose(None, seconds)
        yield tally


def _causes(scrapes: Scrapes) -> Iterator[Tally]:
    """Take kvdiag's own router at its word."""
    for labels, rise, lines in scrapes.series("kvdiag_turns_total"):
        cause, detail = labels.get("cause", ""), labels.get("detail") or None
        if cause in CAUSES and cause not in OUTCOMES:
            yield Tally.of(cause, detail if detail in CAUSES[cause].details else None, "likely", rise, lines)


_RULES: Final[tuple[Callable[[Scrapes], Iterator[Tally]], ...]] = (
    _late_reads,
    _failures,
    _expiries,
    _pressure,
    _slow_reads,
    _causes,
)
