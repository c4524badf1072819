"""The face of tracing: attribute names and `tracer_from`. OpenTelemetry is imported only where an endpoint is set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvdiag.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvdiag.exporters.spans import Tracer

CONVERSATION: Final = "gen_ai.conversation.id"
"""Names from the GenAI semantic conventions (opentelemetry semantic-conventions-genai v0.1.0, status Development);
copied, because the Python package marks its own as moved."""
OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CAUSE: Final = "kvdiag.kv.cause"
"""What the conventions have no name for lives under a private prefix."""
DETAIL: Final = "kvdiag.kv.detail"
TURN: Final = "kvdiag.kv.turn"
REMOTE_TOKENS: Final = "kvdiag.kv.remote_tokens"
LOST_TOKENS: Final = "kvdiag.kv.lost_tokens"
DIRECTION: Final = "kvdiag.kv.direction"
TRANSFER_BYTES: Final = "kvdiag.kv.transfer_bytes"


def _ignore() -> None: ...


def tracer_from(
    endpoint: str | None,
    service_name: str,
    *,
    on_drop: Callable[[], None] = _ignore,
    attributes: Mapping[str, str] | None = None,
) -> Tracer | None:
    """Return a tracer that sends to `endpoint`, or None where there is none.

    `http://HOST:4318` speaks OTLP/HTTP, `grpc://HOST:4317` OTLP/gRPC (`https`, `grpcs`: with TLS). `attributes` describe
    the process (the resource). `on_drop` is called once for each span that the collector did not take, from the
    exporter's thread. Raises InputError for an endpoint that cannot be used and MissingExtraError without the `otel` extra.
    """
    if not endpoint:
        return None
    try:
        from kvdiag.exporters import otel, spans  # noqa: PLC0415 - the `otel` extra may be missing
    except ImportError:
        raise MissingExtraError("tracing", "otel") from None
    return spans.Tracer(otel.span_exporter(endpoint), otel.resource(service_name, attributes or {}), on_drop)
