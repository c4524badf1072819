"""What parts of a turn took on average, by the engines' own counters: all that `/metrics` can tell of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvdiag.diagnosis.report import Average
from kvdiag.diagnosis.snapshots import Scrapes, pair_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvdiag.diagnosis.casebook import Casebook
    from kvdiag.diagnosis.options import LogRole

# vLLM counts a request as queued until it runs, so that the wait for blocks read from the other engine is part of it.
_METRICS: Final[dict[LogRole, dict[str, tuple[str, ...]]]] = {
    "prefill": {
        "vllm:request_queue_time_seconds": ("prefill_queue", "read"),
        "vllm:nixl_xfer_time_seconds": ("read",),
        "vllm:request_prefill_time_seconds": ("prefill_compute",),
    },
    "decode": {"vllm:nixl_xfer_time_seconds": ("handoff",)},
    "router": {"kvdiag_prefill_seconds": ("prefill_queue", "read", "prefill_compute")},
}


def averages(book: Casebook) -> list[Average]:
    """Return the averages that the snapshots show."""
    snapshots = [snapshot for engine in book.engines for snapshot in engine.snapshots]
    return [average for scrapes in pair_up(snapshots) for average in _of(scrapes)]


def _of(scrapes: Scrapes) -> Iterator[Average]:
    if scrapes.role is None:
        return
    for metric, parts in _METRICS[scrapes.role].items():
        count = scrapes.rise(f"{metric}_count")
        if count >= 1:
            yield Average(
                role=scrapes.role,
                parts=list(parts),
                mean_s=round(scrapes.rise(f"{metric}_sum") / count, 6),
                requests=round(count),
                metric=metric,
                since="start" if scrapes.first is None else "first scrape",
            )
