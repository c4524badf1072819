"""Spans join the router's trace and last as long as what they stand for."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kvdiag.connector.tracing import EventSpans, collector
from kvdiag.events import KvEvent
from kvdiag.exporters.spans import Tracer

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def spans_of(**fields: object) -> dict[str, tuple[float, str | None]]:
    """Return seconds and error of each span by name, all of them children of PARENT."""
    exporter = InMemorySpanExporter()
    spans = EventSpans(Tracer(exporter, Resource.create({}), lambda: None))
    event = KvEvent(**({"ts": "", "request_id": "r", "role": "prefill", "engine_id": "e"} | fields))  # type: ignore[arg-type]
    spans(event, PARENT, 100.0)
    spans.close()
    found = {}
    for span in exporter.get_finished_spans():
        assert span.parent is not None
        assert f"{span.parent.trace_id:032x}" == TRACE
        assert span.end_time == 100 * 10**9
        error = (span.attributes or {}).get("error.type")
        found[span.name] = ((span.end_time - (span.start_time or 0)) / 1e9, str(error) if error else None)
    return found


def test_a_read_is_a_wait_and_a_transfer_within_it() -> None:
    found = spans_of(kind="transfer", wait_s=0.5, seconds=0.25, direction="decode_to_prefill")
    assert found == {"kvdiag.wait": (0.5, None), "kvdiag.transfer": (0.25, None)}


def test_a_failed_read_is_a_wait_that_ended_in_its_cause() -> None:
    assert spans_of(kind="failure", wait_s=2.0, cause="transfer_failed") == {"kvdiag.wait": (2.0, "transfer_failed")}


def test_a_retention_lasts_until_its_release() -> None:
    assert spans_of(kind="release", seconds=12.0, release="read") == {"kvdiag.retention": (12.0, None)}


@pytest.mark.parametrize("kind", ["match", "retain"])
def test_what_takes_no_time_is_no_span(kind: str) -> None:
    assert spans_of(kind=kind) == {}


@pytest.mark.parametrize(
    ("protocol", "endpoint", "expected"),
    [
        (None, "http://collector:4317", "grpc://collector:4317"),
        (None, "collector:4317", "grpc://collector:4317"),
        ("http/protobuf", "http://collector:4318/v1/traces", "http://collector:4318"),
    ],
)
def test_the_collector_is_vllms(
    monkeypatch: pytest.MonkeyPatch, protocol: str | None, endpoint: str, expected: str
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", raising=False)
    if protocol:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", protocol)
    assert collector(endpoint) == expected
