"""The API server's side: stats become metrics and lines of the event log. One writer, off the engine's hot path."""

from __future__ import annotations

import atexit
import logging
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY
from vllm import __version__ as vllm_version
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlPromMetrics

from kvdiag.connector import upstream
from kvdiag.connector.outbox import Outbox
from kvdiag.connector.recorder import EngineRecorder
from kvdiag.connector.settings import Settings
from kvdiag.connector.tracing import EventSpans
from kvdiag.errors import KvdiagError
from kvdiag.exporters.jsonl import JsonlSink
from kvdiag.exporters.prometheus import Metrics
from kvdiag.exporters.push import push_from

if TYPE_CHECKING:
    from pathlib import Path

    from kvdiag.exporters.readings import MetricPush

_log = logging.getLogger("vllm.kvdiag.connector")
_families: dict[tuple[str, ...], Metrics] = {}
"""By label names: vLLM may build its loggers twice in a process, a registry takes a family once."""
_sinks: dict[Path, JsonlSink] = {}
_pushes: dict[str, MetricPush] = {}


class InstrumentedPromMetrics(NixlPromMetrics):  # type: ignore[misc]  # vLLM ships no types
    """Upstream's metrics and ours."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        settings = Settings.of(vllm_config)
        self._errors = Outbox()
        self._recorders: dict[int, EngineRecorder] = {}
        for engine, values in per_engine_labelvalues.items():
            metrics = _metrics(labelnames, values)
            recorder = EngineRecorder(metrics, settings, _sink(settings.event_log, metrics), _spans(settings, metrics))
            recorder.introduce(str(vllm_config.cache_config.block_size), vllm_version, upstream.nixl_version())
            self._recorders[engine] = recorder
            _push(settings, metrics)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Record one step's stats."""
        super().observe(transfer_stats_data, engine_idx)
        recorder = self._recorders.get(engine_idx)
        if recorder is None:
            return
        for item in transfer_stats_data.get(upstream.ITEMS, ()):
            self._errors.guard(recorder.record, item)
        for error in self._errors.drain():
            recorder.record(error)


def _metrics(labelnames: list[str], values: list[object]) -> Metrics:
    constant = dict(zip(labelnames, map(str, values), strict=True))
    known = _families.get(tuple(labelnames))
    if known is not None:
        return known.sibling(constant)
    return _families.setdefault(tuple(labelnames), Metrics("connector", REGISTRY, constant=constant))


def _sink(path: Path | None, metrics: Metrics) -> JsonlSink | None:
    """Return the process's one sink for this file; engines that share it share its writer."""
    if path is None:
        return None
    if path not in _sinks:
        dropped = metrics.counter("kvdiag_dropped_events_total", "jsonl")
        _sinks[path] = JsonlSink(path, on_drop=dropped.inc)
        atexit.register(_sinks[path].close)
    return _sinks[path]


def _push(settings: Settings, metrics: Metrics) -> None:
    """Send kvdiag's families by OTLP too where that is asked for: once a process, from a thread of the API server."""
    if settings.metrics_endpoint is None or settings.metrics_endpoint in _pushes:
        return
    dropped = metrics.counter("kvdiag_dropped_events_total", "otlp")
    try:
        pushing = push_from(
            settings.metrics_endpoint, f"kvdiag-{settings.role or 'both'}", metrics, on_drop=dropped.inc
        )
    except KvdiagError as error:
        _log.warning("kvdiag: no metrics by OTLP: %s", error)
        return
    if pushing is not None:
        _pushes[settings.metrics_endpoint] = pushing
        atexit.register(pushing.close)


def _spans(settings: Settings, metrics: Metrics) -> EventSpans | None:
    """Return what traces; vLLM serves without it where the packages or the endpoint are not usable."""
    if settings.traces_endpoint is None:
        return None
    dropped = metrics.counter("kvdiag_dropped_events_total", "otlp")
    try:
        spans = EventSpans.to(settings.traces_endpoint, settings.role or "both", on_drop=dropped.inc)
    except KvdiagError as error:
        _log.warning("kvdiag: no spans: %s", error)
        return None
    atexit.register(spans.close)
    return spans
