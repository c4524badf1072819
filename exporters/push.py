"""The face of metrics by OTLP: one function. OpenTelemetry is imported only where an endpoint is set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvdiag.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from prometheus_client import CollectorRegistry

    from kvdiag.exporters.readings import MetricPush

INTERVAL: Final = 30.0
"""Seconds between two exports."""


def _ignore() -> None: ...


def push_from(
    endpoint: str | None,
    service_name: str,
    registry: CollectorRegistry,
    *,
    interval: float = INTERVAL,
    genai: bool = False,
    on_drop: Callable[[], None] = _ignore,
    attributes: Mapping[str, str] | None = None,
) -> MetricPush | None:
    """Send the registry's metrics to `endpoint` every `interval` seconds, or do nothing where there is none.

    The registry is the one that `/metrics` serves: nothing is counted twice. Names are the Prometheus names without
    `_total`; a collector that writes to Prometheus gives them back unchanged. `genai` adds the names of the GenAI
    semantic conventions. `on_drop` is called once for each export that the collector did not take. Raises InputError for
    an endpoint that cannot be used and MissingExtraError without the `otel` extra.
    """
    if not endpoint:
        return None
    try:
        from kvdiag.exporters import otel, readings  # noqa: PLC0415 - the `otel` extra may be missing
    except ImportError:
        raise MissingExtraError("metrics by OTLP", "otel") from None
    return readings.MetricPush(
        registry,
        otel.metric_exporter(endpoint),
        otel.resource(service_name, attributes or {}),
        interval=interval,
        genai=genai,
        on_drop=on_drop,
    )
