from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.router.harness import Act, Json, Stack, run, running

from kvdiag.exporters.spans import Tracer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

PARENT = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


class Spans:
    """The spans of the turns of one stack."""

    def __init__(self, stack: Stack) -> None:
        self._exporter = InMemorySpanExporter()
        self._tracer = Tracer(self._exporter, Resource.create({}), lambda: None)
        stack.router.services = dataclasses.replace(stack.router.services, tracer=self._tracer)

    def by_name(self) -> dict[str, ReadableSpan]:
        self._tracer.close()
        return {span.name: span for span in self._exporter.get_finished_spans()}


def chat() -> Json:
    return {"model": "m", "messages": [{"role": "user", "content": "secret prompt"}], "stream": True}


def test_a_turn_is_a_server_span_with_a_client_span_for_each_call() -> None:
    async def scenario() -> None:
        async with running() as stack:
            spans = Spans(stack)
            await stack.post("/v1/chat/completions", chat(), x_session_id="secret id", traceparent=PARENT)
            found = spans.by_name()
            turn, prefill, decode = (found[n] for n in ("POST /v1/chat/completions", "kvdiag.prefill", "kvdiag.decode"))
            assert (turn.kind, prefill.kind, decode.kind) == (SpanKind.SERVER, SpanKind.CLIENT, SpanKind.CLIENT)
            assert turn.parent is not None
            assert f"{turn.parent.span_id:016x}" == "0123456789abcdef"
            assert turn.attributes is not None
            assert turn.attributes["gen_ai.request.model"] == "m"
            assert turn.attributes["kvdiag.kv.cause"] == "first_turn"
            assert turn.attributes["gen_ai.operation.name"] == "chat"
            assert turn.attributes["gen_ai.usage.input_tokens"] == 40
            for span, engine in ((prefill, stack.prefill), (decode, stack.decode)):
                assert span.parent is not None
                assert span.parent.span_id == turn.context.span_id
                sent = engine.turns[0].headers["traceparent"]
                assert sent == f"00-{turn.context.trace_id:032x}-{span.context.span_id:016x}-01"
            assert "secret" not in "".join(span.to_json() for span in found.values())

    run(scenario())


@pytest.mark.parametrize(("act", "status"), [(Act(status=500), "502"), (Act(drop=True), "502")])
def test_a_failed_turn_is_an_error_span(act: Act, status: str) -> None:
    async def scenario() -> None:
        async with running() as stack:
            spans = Spans(stack)
            stack.prefill.acts.extend([act] * 3)
            await stack.post("/v1/chat/completions", chat())
            turn = spans.by_name()["POST /v1/chat/completions"]
            assert turn.status.status_code is StatusCode.ERROR
            assert turn.attributes is not None
            assert turn.attributes["error.type"] == status

    run(scenario())


def test_a_measurement_links_to_its_trace() -> None:
    async def scenario() -> None:
        async with running() as stack:
            Spans(stack)
            await stack.post("/v1/chat/completions", chat(), traceparent=PARENT)
            page = (await stack.get("/metrics", accept="application/openmetrics-text; version=1.0.0")).body
            exemplars = [
                line for line in page.splitlines() if b"kvdiag_turn_ttft_seconds_bucket" in line and b"# {" in line
            ]
            assert b'trace_id="0123456789abcdef0123456789abcdef"' in exemplars[0]

    run(scenario())


@pytest.mark.parametrize("sent", ["", "nonsense", PARENT + "-extra", "ff-" + PARENT[3:], PARENT.upper()])
def test_a_traceparent_that_is_none_is_not_handed_on(sent: str) -> None:
    async def scenario() -> None:
        async with running() as stack:
            await stack.post("/v1/chat/completions", chat(), traceparent=sent)
            assert "traceparent" not in stack.prefill.turns[0].headers
            assert "traceparent" not in stack.prefill.turns[0].params["kvdiag"]

    run(scenario())
