"""The face of metrics by OTLP: one function. OpenTelemetry is imported only where an endpoint is set."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Protocol

from kvdiag.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from prometheus_client.metrics_core import Metric as Family

    from kvdiag.exporters.readings import MetricPush

INTERVAL_VARIABLE: Final = "OTEL_METRIC_EXPORT_INTERVAL"
"""OpenTelemetry's own variable: milliseconds between two exports."""
INTERVAL_S: Final = 30.0


class Source(Protocol):
    """What is pushed: a prometheus_client registry, or some of its families."""

    def collect(self) -> Iterable[Family]:
        """Return every family as it stands."""


def _ignore() -> None: ...


def interval_s() -> float:
    """Return the seconds between two exports. Raises InputError for a value that is no positive number."""
    given = os.environ.get(INTERVAL_VARIABLE)
    if given is None:
        return INTERVAL_S
    if not given.isdecimal() or int(given) == 0:
        raise InputError(f"{INTERVAL_VARIABLE} is {given!r}; set it to milliseconds, such as 30000")
    return int(given) / 1000


def push_from(
    endpoint: str | None,
    service_name: str,
    source: Source,
    *,
    genai: bool = False,
    on_drop: Callable[[], None] = _ignore,
    attributes: Mapping[str, str] | None = None,
) -> MetricPush | None:
    """Send the source's metrics to `endpoint` every `interval_s()` seconds, or do nothing where there is none.

    The source is what `/metrics` serves: nothing is counted twice. Names are the Prometheus names without
    `_total`; a collector that writes to Prometheus gives them back unchanged. `genai` adds the names of the GenAI
    semantic conventions. `on_drop` is called once for each export that the collector did not take. Raises InputError for
    an endpoint or interval that cannot be used and MissingExtraError without the `otel` extra.
    """
    if not endpoint:
        return None
    try:
        from kvdiag.exporters import otel, readings  # noqa: PLC0415 - the `otel` extra may be missing
    except ImportError:
        raise MissingExtraError("metrics by OTLP", "otel") from None
    return readings.MetricPush(
        source,
        otel.metric_exporter(endpoint),
        otel.resource(service_name, attributes or {}),
        interval=interval_s(),
        genai=genai,
        on_drop=on_drop,
    )
