"""The router's metrics, children kept: a look-up costs more than the increment."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Literal

from prometheus_client import ProcessCollector

from kvdiag import __version__
from kvdiag.causes import OUTCOMES
from kvdiag.events import Role, TurnRecord, prompt_bucket, turn_bucket
from kvdiag.exporters.prometheus import Metrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

Arm = Literal["reuse", "holdout"]
Retry = Literal[
    "prefill_error",
    "prefill_timeout",
    "prefill_unreachable",
    "decode_error",
    "decode_timeout",
    "decode_unreachable",
]


class RouterMetrics:
    """Counts turns and what happens on the way."""

    def __init__(self, registry: CollectorRegistry) -> None:
        ProcessCollector(registry=registry)  # CPU, memory and open files: what says that a router is the bottleneck
        metrics = Metrics("router", registry, one_thread=True)
        metrics.gauge("kvdiag_build_info", __version__).set(1)
        self.handles = metrics.gauge("kvdiag_router_handles")
        self.handle_ttl = metrics.gauge("kvdiag_router_handle_ttl_seconds")
        self.store_up = metrics.gauge("kvdiag_router_store_up")
        self.store_up.set(1)
        self._counter = cache(metrics.counter)
        self._histogram = cache(metrics.histogram)

    def lookup(self, result: str) -> None:
        """Count a handle look-up."""
        self._counter("kvdiag_router_lookups_total", result).inc()

    def evicted(self) -> None:
        """Count a handle given up for want of room."""
        self._counter("kvdiag_router_evictions_total").inc()

    def retry(self, reason: Retry) -> None:
        """Count a call that is repeated."""
        self._counter("kvdiag_router_retries_total", reason).inc()

    def upstream_error(self, role: Role) -> None:
        """Count an engine's error."""
        self._counter("kvdiag_router_upstream_errors_total", role).inc()

    def dropped(self, sink: Literal["queue", "jsonl", "otlp"]) -> None:
        """Count a record that telemetry lost."""
        self._counter("kvdiag_dropped_events_total", sink).inc()

    def turn(self, record: TurnRecord, arm: Arm, *, handoff_s: float | None, exemplar: dict[str, str] | None) -> None:
        """Count a finished turn."""
        cause, detail, bucket = record.cause or "unexplained", record.detail or "", turn_bucket(record.turn)
        self._counter("kvdiag_turns_total", cause, detail, bucket).inc()
        if record.router_s is not None:
            self._histogram("kvdiag_router_seconds").observe(record.router_s)
        if record.total_s is not None:
            self._histogram("kvdiag_turn_seconds").observe(record.total_s)
        if record.prefill_s is not None:
            self._histogram("kvdiag_prefill_seconds").observe(record.prefill_s)
        if handoff_s is not None:
            self._histogram("kvdiag_handoff_seconds").observe(handoff_s)
        if record.gap_s is not None:
            self._histogram("kvdiag_inter_turn_gap_seconds").observe(record.gap_s)
        if record.ttft_s is not None:
            self._histogram("kvdiag_turn_ttft_seconds", cause, bucket, arm).observe(record.ttft_s, exemplar)
            self._by_prompt(record, arm)
        self._tokens(record)

    def _by_prompt(self, record: TurnRecord, arm: Arm) -> None:
        if record.turn <= 1 or record.prompt_tokens is None or record.ttft_s is None:
            return
        reused = "yes" if record.cause in OUTCOMES and record.cause != "first_turn" else "no"
        child = self._histogram("kvdiag_turn_ttft_by_prompt_seconds", prompt_bucket(record.prompt_tokens), reused, arm)
        child.observe(record.ttft_s)

    def _tokens(self, record: TurnRecord) -> None:
        counts = record.local_tokens, record.remote_tokens, record.computed_tokens, record.lost_tokens
        for source, count in zip(("local", "remote", "computed", "lost"), counts, strict=True):
            if count:
                self._counter("kvdiag_prompt_tokens_total", source).inc(count)
