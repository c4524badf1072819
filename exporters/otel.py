"""OTLP over gRPC and HTTP: who speaks and where to; needs the `otel` extra."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from kvdiag.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.trace.export import SpanExporter

Protocol = Literal["grpc", "http"]
Signal = Literal["traces", "metrics"]
_SCHEMES: Final[dict[str, tuple[Protocol, bool]]] = {
    "http": ("http", False),
    "https": ("http", True),
    "grpc": ("grpc", False),
    "grpcs": ("grpc", True),
}
TIMEOUT: Final = 5.0
"""Seconds that one export may take, retries included."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A collector's address; the scheme picks the protocol."""

    protocol: Protocol
    secure: bool
    authority: str
    path: str = ""

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Read a URL such as `http://collector:4318` or `grpc://collector:4317`."""
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES or not parts.hostname:
            raise InputError(
                f"OTLP endpoint {url!r} cannot be used; "
                "write http://HOST:4318 (OTLP/HTTP) or grpc://HOST:4317 (OTLP/gRPC), https or grpcs for TLS"
            )
        protocol, secure = _SCHEMES[parts.scheme]
        return cls(protocol, secure, parts.netloc, parts.path.rstrip("/"))

    def url(self, signal: Signal) -> str:
        """Return what the OTLP exporters want: a signal's URL for HTTP, host and port for gRPC."""
        if self.protocol == "grpc":
            return self.authority
        return f"http{'s' if self.secure else ''}://{self.authority}{self.path}/v1/{signal}"


def resource(service_name: str, attributes: Mapping[str, str]) -> Resource:
    """Return who is speaking; `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` win over what is passed."""
    ours = {
        "service.name": service_name,
        "service.namespace": "kvdiag",
        "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
        **attributes,
    }
    return Resource.create(ours).merge(OTELResourceDetector().detect())


def span_exporter(url: str) -> SpanExporter:
    """Return the SDK's exporter for this endpoint."""
    endpoint = Endpoint.parse(url)
    if endpoint.protocol == "grpc":
        return GrpcSpanExporter(endpoint=endpoint.url("traces"), insecure=not endpoint.secure, timeout=TIMEOUT)
    return HttpSpanExporter(endpoint=endpoint.url("traces"), timeout=TIMEOUT)


def metric_exporter(url: str) -> MetricExporter:
    """Return the SDK's exporter for this endpoint."""
    endpoint = Endpoint.parse(url)
    if endpoint.protocol == "grpc":
        return GrpcMetricExporter(endpoint=endpoint.url("metrics"), insecure=not endpoint.secure, timeout=TIMEOUT)
    return HttpMetricExporter(endpoint=endpoint.url("metrics"), timeout=TIMEOUT)
