"""Metrics as a collector receives them: the same numbers as `/metrics`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE
from prometheus_client import CollectorRegistry, Gauge
from tests.exporters.collector import attributes

from kvdiag.catalogue import METRICS
from kvdiag.errors import InputError
from kvdiag.exporters.prometheus import Metrics
from kvdiag.exporters.push import INTERVAL_VARIABLE, push_from

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
    from tests.exporters.collector import Collector


def push(collector: Collector, registry: CollectorRegistry, *, genai: bool = False) -> dict[str, Metric]:
    pushing = push_from(collector.url, "kvdiag-router", registry, genai=genai)
    assert pushing is not None
    pushing.close()
    return collector.last_push


def test_every_catalogued_metric_arrives_under_its_own_name(collector: Collector) -> None:
    registry = CollectorRegistry()
    Metrics("router", registry)
    names = {m.name.removesuffix("_total") for m in METRICS.values() if "router" in m.emitter}
    metrics = push(collector, registry)
    assert {name for name in metrics if not name.endswith("_created")} == names
    assert metrics["kvdiag_turn_ttft_seconds"].unit == "s"
    assert metrics["kvdiag_prompt_tokens"].unit == ""


def test_counters_gauges_and_histograms_keep_their_numbers(collector: Collector) -> None:
    registry = CollectorRegistry()
    metrics = Metrics("connector", registry, constant={"engine": "0"})
    metrics.counter("kvdiag_transfer_bytes_total", "decode_to_prefill").inc(1024)
    metrics.gauge("kvdiag_retained_blocks").set(7)
    for seconds in (0.0003, 0.03, 0.03, 99):
        metrics.histogram("kvdiag_transfer_seconds", "decode_to_prefill").observe(seconds)
    arrived = push(collector, registry)

    total = arrived["kvdiag_transfer_bytes"]
    assert total.unit == "By"
    assert total.sum.is_monotonic
    assert total.sum.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    by_direction = {attributes(p)["direction"]: p.as_double for p in total.sum.data_points}
    assert by_direction == {"decode_to_prefill": 1024, "prefill_to_decode": 0}
    assert [p.as_double for p in arrived["kvdiag_retained_blocks"].gauge.data_points] == [7]

    points = {attributes(p)["direction"]: p for p in arrived["kvdiag_transfer_seconds"].histogram.data_points}
    point = points["decode_to_prefill"]
    bounds = METRICS["kvdiag_transfer_seconds"].buckets
    assert tuple(point.explicit_bounds) == bounds
    assert (point.count, round(point.sum, 4)) == (4, 99.0603)
    full = {bound: count for bound, count in zip((*bounds, "more"), point.bucket_counts, strict=True) if count}
    assert full == {0.0005: 1, 0.05: 2, "more": 1}
    assert attributes(point) == {"engine": "0", "direction": "decode_to_prefill"}


def test_genai_names_are_added_only_when_asked_for(http_collector: Collector) -> None:
    registry = CollectorRegistry()
    metrics = Metrics("router", registry)
    metrics.histogram("kvdiag_turn_ttft_seconds", "remote_hit", "2-4", "reuse").observe(0.2)
    metrics.histogram("kvdiag_turn_ttft_seconds", "first_turn", "1", "reuse").observe(1.7)
    metrics.histogram("kvdiag_turn_seconds").observe(3)
    assert not [name for name in push(http_collector, registry) if name.startswith("gen_ai.")]
    arrived = push(http_collector, registry, genai=True)
    (point,) = arrived["gen_ai.server.time_to_first_token"].histogram.data_points
    assert (point.count, round(point.sum, 2)) == (2, 1.9)
    (whole,) = arrived["gen_ai.server.request.duration"].histogram.data_points
    assert (whole.count, whole.sum) == (1, 3)
    assert attributes(whole) == attributes(point)
    assert attributes(point) == {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "vllm"}


def test_exports_again_and_again_until_closed(http_collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INTERVAL_VARIABLE, "20")
    registry = CollectorRegistry()
    gauge = Metrics("router", registry).gauge("kvdiag_router_handles")
    pushing = push_from(http_collector.url, "s", registry)
    assert pushing is not None
    twice = threading.Event()
    while len(http_collector.metrics) < 2:
        twice.wait(0.01)
    gauge.set(5)
    pushing.close()
    assert [p.as_double for p in http_collector.last_push["kvdiag_router_handles"].gauge.data_points] == [5]


def test_a_dead_collector_costs_a_count_and_nothing_else() -> None:
    dropped: list[int] = []
    pushing = push_from("http://127.0.0.1:9", "s", CollectorRegistry(), on_drop=lambda: dropped.append(1))
    assert pushing is not None
    pushing.close()
    assert dropped == [1]


def test_without_an_endpoint_there_is_nothing() -> None:
    assert push_from(None, "s", CollectorRegistry()) is None


@pytest.mark.parametrize("value", ["", "0", "30s", "-5"])
def test_an_interval_that_cannot_be_used_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INTERVAL_VARIABLE, value)
    with pytest.raises(InputError, match="set it to milliseconds"):
        push_from("http://127.0.0.1:9", "s", CollectorRegistry())


def test_families_can_be_pushed_without_the_rest_of_their_registry(http_collector: Collector) -> None:
    """The connector's live beside vLLM's, which have their own way out."""
    registry = CollectorRegistry()
    Gauge("vllm:num_requests_running", "r", registry=registry)
    metrics = Metrics("connector", registry, constant={"engine": "0"})
    metrics.sibling({"engine": "1"}).counter("kvdiag_connector_errors_total").inc()
    pushing = push_from(http_collector.url, "s", metrics)
    assert pushing is not None
    pushing.close()
    arrived = http_collector.last_push
    assert all(name.startswith("kvdiag_") for name in arrived)
    points = arrived["kvdiag_connector_errors"].sum.data_points
    assert {attributes(p)["engine"]: p.as_double for p in points} == {"0": 0, "1": 1}
