"""From a prometheus_client registry to OpenTelemetry's data points; needs the `otel` extra."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from kvdiag import __version__
from kvdiag.exporters import tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from opentelemetry.sdk.resources import Resource
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.samples import Sample

    from kvdiag.exporters.push import Source

UNITS: Final = {"_seconds": "s", "_bytes": "By"}
GENAI: Final = {
    "kvdiag_turn_ttft_seconds": "gen_ai.server.time_to_first_token",
    "kvdiag_turn_seconds": "gen_ai.server.request.duration",
}
"""Our histograms that the GenAI semantic conventions have a name for. Bounds stay ours; theirs are advice. The third of
theirs, `gen_ai.server.time_per_output_token`, only an engine can measure: see `dashboards.rules.genai_file`."""
_GENAI_ATTRIBUTES: Final = {tracing.OPERATION: "chat", tracing.PROVIDER: "vllm"}
_SCOPE: Final = InstrumentationScope("kvdiag", __version__)
_Labels = tuple[tuple[str, str], ...]


class MetricPush:
    """Exports a source from a thread of its own until closed; an export that fails is dropped and counted."""

    def __init__(
        self,
        source: Source,
        exporter: MetricExporter,
        resource: Resource,
        *,
        interval: float,
        genai: bool,
        on_drop: Callable[[], None],
    ) -> None:
        self._source = source
        self._exporter = exporter
        self._resource = resource
        self._interval = interval
        self._genai = genai
        self._on_drop = on_drop
        self._started = time.time_ns()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvdiag-otlp-metrics", daemon=True)
        self._thread.start()

    def close(self, timeout: float = 10.0) -> None:
        """Export once more and stop the thread."""
        self._closing.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._closing.wait(self._interval):
            self._export()
        self._export()
        self._exporter.shutdown()

    def _export(self) -> None:
        try:
            families = list(self._source.collect())
            metrics = list(convert(families, self._started, time.time_ns(), genai=self._genai))
            scope = ScopeMetrics(_SCOPE, metrics, schema_url="")
            data = MetricsData([ResourceMetrics(self._resource, [scope], schema_url="")])
            if self._exporter.export(data) is MetricExportResult.SUCCESS:
                return
        except Exception:  # noqa: BLE001, S110 - telemetry never breaks its process; counted below
            pass
        self._on_drop()


def convert(families: Iterable[Family], start_ns: int, now_ns: int, *, genai: bool) -> Iterator[Metric]:
    """Yield each family as OpenTelemetry sees it; cumulative since `start_ns`, read at `now_ns` (both since the epoch)."""
    for family in families:
        if family.type == "histogram":
            points = [_histogram_point(labels, rows, start_ns, now_ns) for labels, rows in _children(family).items()]
            yield _histogram(family.name, family.documentation, points)
            if genai and family.name in GENAI:
                yield _histogram(GENAI[family.name], family.documentation, [_merged(points)] if points else [])
        elif family.type == "counter":
            numbers = _numbers(family, "_total", start_ns, now_ns)
            data = Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True)
            yield Metric(family.name, family.documentation, _unit(family.name), data)
        elif family.type == "gauge" and not family.name.endswith("_created"):
            yield Metric(
                family.name, family.documentation, _unit(family.name), Gauge(_numbers(family, "", None, now_ns))
            )


def _unit(name: str) -> str:
    return next((unit for suffix, unit in UNITS.items() if name.endswith(suffix)), "")


def _numbers(family: Family, suffix: str, start_ns: int | None, now_ns: int) -> list[NumberDataPoint]:
    return [
        NumberDataPoint(sample.labels, start_ns or 0, now_ns, sample.value)
        for sample in family.samples
        if sample.name == family.name + suffix
    ]


def _children(family: Family) -> dict[_Labels, list[Sample]]:
    children: dict[_Labels, list[Sample]] = defaultdict(list)
    for sample in family.samples:
        if not sample.name.endswith("_created"):
            children[tuple((k, v) for k, v in sample.labels.items() if k != "le")].append(sample)
    return children


def _histogram(name: str, help_text: str, points: list[HistogramDataPoint]) -> Metric:
    return Metric(name, help_text, "s", Histogram(points, AggregationTemporality.CUMULATIVE))


def _histogram_point(labels: _Labels, samples: list[Sample], start_ns: int, now_ns: int) -> HistogramDataPoint:
    cumulative = [sample for sample in samples if sample.name.endswith("_bucket")]
    totals = [0, *(int(sample.value) for sample in cumulative)]
    total = sum(sample.value for sample in samples if sample.name.endswith("_sum"))
    return HistogramDataPoint(
        dict(labels),
        start_ns,
        now_ns,
        count=totals[-1],
        sum=total,
        bucket_counts=[after - before for before, after in pairwise(totals)],
        explicit_bounds=[float(sample.labels["le"]) for sample in cumulative[:-1]],
        min=float("nan"),
        max=float("nan"),
    )


def _merged(points: list[HistogramDataPoint]) -> HistogramDataPoint:
    """Add up all children: what is left has no label of ours, so that the standard name keeps its standard attributes."""
    first = points[0]
    return HistogramDataPoint(
        _GENAI_ATTRIBUTES,
        first.start_time_unix_nano,
        first.time_unix_nano,
        count=sum(point.count for point in points),
        sum=sum(point.sum for point in points),
        bucket_counts=[sum(column) for column in zip(*(point.bucket_counts for point in points), strict=True)],
        explicit_bounds=first.explicit_bounds,
        min=first.min,
        max=first.max,
    )
