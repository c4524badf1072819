"""A real OTLP receiver, over HTTP and over gRPC, that decodes what arrives with OpenTelemetry's own protobuf classes."""

from __future__ import annotations

import contextlib
import gzip
import threading
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics
    from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans


class Collector:
    """What arrived, and where to send it."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[ResourceSpans] = []
        self.metrics: list[ResourceMetrics] = []

    def take(self, path: str, body: bytes) -> bytes:
        if path == "/v1/traces":
            self.spans += trace_service_pb2.ExportTraceServiceRequest.FromString(body).resource_spans
            return bytes(trace_service_pb2.ExportTraceServiceResponse().SerializeToString())
        self.metrics += metrics_service_pb2.ExportMetricsServiceRequest.FromString(body).resource_metrics
        return bytes(metrics_service_pb2.ExportMetricsServiceResponse().SerializeToString())

    @property
    def last_push(self) -> dict[str, Metric]:
        """The metrics of the last export, by name."""
        return {metric.name: metric for scope in self.metrics[-1].scope_metrics for metric in scope.metrics}


@contextlib.contextmanager
def over_http() -> Iterator[Collector]:
    """Receive OTLP/HTTP."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the signature of the base
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers["content-encoding"] == "gzip":
                body = gzip.decompress(body)
            answer = collector.take(self.path, body)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(answer)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self.collector = collector

    def Export(  # noqa: N802 - the name in the protocol
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        self.collector.spans += request.resource_spans
        return trace_service_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self.collector = collector

    def Export(  # noqa: N802 - the name in the protocol
        self, request: metrics_service_pb2.ExportMetricsServiceRequest, context: grpc.ServicerContext
    ) -> metrics_service_pb2.ExportMetricsServiceResponse:
        self.collector.metrics += request.resource_metrics
        return metrics_service_pb2.ExportMetricsServiceResponse()


@contextlib.contextmanager
def over_grpc() -> Iterator[Collector]:
    """Receive OTLP/gRPC."""
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(collector), server)  # type: ignore[no-untyped-call]
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Metrics(collector), server)  # type: ignore[no-untyped-call]
    collector.url = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


PROTOCOLS: Final = {"http": over_http, "grpc": over_grpc}


def attributes(described: object) -> dict[str, str]:
    """Return the attributes of a data point or a resource that are text."""
    return {pair.key: pair.value.string_value for pair in described.attributes}  # type: ignore[attr-defined]
