"""Spans of what the engine did for a turn, in the router's trace: the wait for a read, the read, the retention.

Made in the API server from events, after the fact; the engine's hot path knows nothing of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Self

from kvdiag.exporters import tracing

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdiag.events import KvEvent
    from kvdiag.exporters.spans import Tracer

_NS: Final = 1_000_000_000


class EventSpans:
    """Turns events into finished spans. Never blocks, never raises for what the collector does."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @classmethod
    def to(cls, endpoint: str, role: str, *, on_drop: Callable[[], None]) -> Self:
        """Return spans that go where vLLM's own go, by the protocol that vLLM uses for them.

        Raises InputError for an endpoint that cannot be used and MissingExtraError without the `otel` extra.
        """
        tracer = tracing.tracer_from(collector(endpoint), f"kvdiag-{role}", on_drop=on_drop)
        if tracer is None:
            raise ValueError("an endpoint is needed")
        return cls(tracer)

    def __call__(self, event: KvEvent, traceparent: str, ended: float) -> None:
        """Add the spans of one event that happened at `ended`, seconds since the epoch."""
        if event.wait_s is not None:
            error = event.cause if event.kind in ("failure", "decline") else None
            self._add("kvdiag.wait", event, traceparent, ended, event.wait_s, error=error)
        if event.kind == "transfer" and event.seconds is not None:
            self._add("kvdiag.transfer", event, traceparent, ended, event.seconds)
        if event.kind == "release" and event.seconds is not None:
            self._add("kvdiag.retention", event, traceparent, ended, event.seconds)

    def _add(
        self, name: str, event: KvEvent, traceparent: str, ended: float, seconds: float, *, error: str | None = None
    ) -> None:
        start_ns = int((ended - seconds) * _NS)
        span = self._tracer.start(name, "internal", traceparent=traceparent, start_ns=start_ns)
        span.set(
            {
                tracing.CONVERSATION: event.conversation,
                tracing.TURN: event.turn,
                tracing.DIRECTION: event.direction,
                tracing.CAUSE: event.cause,
                tracing.DETAIL: event.detail or event.release,
                tracing.REMOTE_TOKENS: event.tokens,
                tracing.TRANSFER_BYTES: event.bytes,
            }
        )
        span.end(error=error, end_ns=int(ended * _NS))

    def close(self) -> None:
        """Send what is queued."""
        self._tracer.close()


def collector(endpoint: str) -> str:
    """Return vLLM's endpoint as kvdiag spells it: vLLM picks the protocol by an environment variable, gRPC by default."""
    if os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc") == "grpc":
        return "grpc://" + endpoint.removeprefix("http://").removeprefix("https://").removeprefix("grpc://")
    return endpoint.removesuffix("/v1/traces")
