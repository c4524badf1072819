"""Spans of one turn, sent from a thread of their own; needs the `otel` extra.

A span never raises and never blocks: what the queue cannot take or the collector refuses is dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.sdk.resources import Resource

Attribute = str | bool | int | float
SpanKind = Literal["server", "client", "internal"]
_PROPAGATOR = TraceContextTextMapPropagator()


class Span:
    """One piece of work in a trace; end it exactly once."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def traceparent(self) -> str:
        """The W3C header value that makes a callee's span a child of this one."""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    @property
    def exemplar(self) -> dict[str, str] | None:
        """Labels for a histogram's exemplar; None where the trace is not sampled and a link would lead nowhere."""
        context = self._span.get_span_context()
        return {"trace_id": f"{context.trace_id:032x}"} if context.trace_flags.sampled else None

    def child(
        self,
        name: str,
        kind: SpanKind = "client",
        *,
        start_ns: int | None = None,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> Span:
        """Start a span under this one; `start_ns` is nanoseconds since the epoch, now where it is left out."""
        return _start(self._tracer, name, kind, trace.set_span_in_context(self._span), start_ns, attributes)

    def set(self, attributes: Mapping[str, Attribute | None]) -> None:
        """Add attributes; None means unknown and is left out."""
        self._span.set_attributes({name: value for name, value in attributes.items() if value is not None})

    def end(self, *, error: str | None = None, end_ns: int | None = None) -> None:
        """Finish; `error` is a short class of failure such as `timeout` or `502`, never a text that may hold addresses."""
        if error is not None:
            self._span.set_attribute("error.type", error)
            self._span.set_status(trace.Status(trace.StatusCode.ERROR))
        self._span.end(end_ns)


class Tracer:
    """Starts the spans of one process."""

    def __init__(self, exporter: SpanExporter, resource: Resource, on_drop: Callable[[], None]) -> None:
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_Counting(exporter, on_drop)))
        self._tracer = self._provider.get_tracer("kvdiag")

    def start(
        self,
        name: str,
        kind: SpanKind = "server",
        *,
        traceparent: str | None = None,
        start_ns: int | None = None,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> Span:
        """Start a span; without a readable `traceparent` it starts a trace of its own."""
        context = _PROPAGATOR.extract({"traceparent": traceparent or ""})
        return _start(self._tracer, name, kind, context, start_ns, attributes)

    def close(self) -> None:
        """Send what is queued and stop the thread."""
        self._provider.shutdown()


class _Counting(SpanExporter):
    """Calls `on_drop` once for each span that the collector did not take."""

    def __init__(self, exporter: SpanExporter, on_drop: Callable[[], None]) -> None:
        self._exporter = exporter
        self._on_drop = on_drop

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            for _ in spans:
                self._on_drop()
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _start(
    tracer: trace.Tracer,
    name: str,
    kind: SpanKind,
    context: Context,
    start_ns: int | None,
    attributes: Mapping[str, Attribute] | None,
) -> Span:
    span = tracer.start_span(
        name, context=context, kind=trace.SpanKind[kind.upper()], attributes=attributes, start_time=start_ns
    )
    return Span(tracer, span)
