"""Spans as a collector receives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from kvdiag.exporters import tracing

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from tests.exporters.collector import Collector

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def received(collector: Collector) -> dict[str, ProtoSpan]:
    return {span.name: span for one in collector.spans for scope in one.scope_spans for span in scope.spans}


def values(attributes: object) -> dict[str, object]:
    pairs: list[KeyValue] = list(attributes)  # type: ignore[call-overload]
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "") for pair in pairs}


def test_a_turns_spans_arrive_with_names_kinds_and_parents(collector: Collector) -> None:
    tracer = tracing.tracer_from(collector.url, "kvdiag-router", attributes={"host.name": "h"})
    assert tracer is not None
    turn = tracer.start("chat", traceparent=PARENT, attributes={tracing.OPERATION: "chat"})
    leg = turn.child("prefill")
    leg.end(error="timeout")
    turn.set({tracing.CONVERSATION: "hashed", tracing.CACHE_READ_TOKENS: 512, tracing.DETAIL: None})
    turn.end()
    tracer.close()

    spans = received(collector)
    server, client = spans["chat"], spans["prefill"]
    assert server.trace_id.hex() == client.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert server.parent_span_id.hex() == "b7ad6b7169203331"
    assert client.parent_span_id == server.span_id
    assert (server.kind, client.kind) == (ProtoSpan.SPAN_KIND_SERVER, ProtoSpan.SPAN_KIND_CLIENT)
    assert values(server.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.conversation.id": "hashed",
        "gen_ai.usage.cache_read.input_tokens": 512,
    }
    assert client.status.code == Status.STATUS_CODE_ERROR
    assert values(client.attributes) == {"error.type": "timeout"}
    resource = values(collector.spans[0].resource.attributes)
    assert (resource["service.name"], resource["host.name"]) == ("kvdiag-router", "h")


def test_given_times_are_kept(http_collector: Collector) -> None:
    """The connector learns of a transfer after it ended."""
    tracer = tracing.tracer_from(http_collector.url, "kvdiag-connector")
    assert tracer is not None
    tracer.start("transfer", "internal", start_ns=1_000, traceparent=PARENT).end(end_ns=3_000)
    tracer.close()
    span = received(http_collector)["transfer"]
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (1_000, 3_000)


def test_the_header_for_the_callee_names_this_span(http_collector: Collector) -> None:
    tracer = tracing.tracer_from(http_collector.url, "s")
    assert tracer is not None
    span = tracer.start("a")
    version, trace_id, span_id, flags = span.traceparent.split("-")
    span.end()
    tracer.close()
    sent = received(http_collector)["a"]
    assert version == "00"
    assert int(flags, 16) & 1  # sampled
    assert (trace_id, span_id) == (sent.trace_id.hex(), sent.span_id.hex())
    assert span.exemplar == {"trace_id": trace_id}


@pytest.mark.parametrize("header", [None, "", "nonsense", "00-zz-1-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_header_that_cannot_be_read_starts_a_trace_of_its_own(header: str | None, http_collector: Collector) -> None:
    tracer = tracing.tracer_from(http_collector.url, "s")
    assert tracer is not None
    tracer.start("a", traceparent=header).end()
    tracer.close()
    assert received(http_collector)["a"].parent_span_id == b""


def test_a_caller_that_does_not_sample_gets_no_spans_and_no_exemplar(http_collector: Collector) -> None:
    tracer = tracing.tracer_from(http_collector.url, "s")
    assert tracer is not None
    span = tracer.start("a", traceparent=PARENT[:-1] + "0")
    assert span.exemplar is None
    assert span.traceparent.endswith("-00")
    span.end()
    tracer.close()
    assert http_collector.spans == []


def test_a_dead_collector_costs_a_count_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    dropped: list[int] = []
    tracer = tracing.tracer_from("http://127.0.0.1:9", "s", on_drop=lambda: dropped.append(1))
    assert tracer is not None
    for _ in range(3):
        tracer.start("a").end()
    tracer.close()
    assert len(dropped) == 3
    assert "127.0.0.1" in caplog.text
