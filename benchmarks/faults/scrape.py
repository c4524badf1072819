"""What the metrics say of one scenario: counters that rose while it ran."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from kvdiag.localstack.process import get

if TYPE_CHECKING:
    from kvdiag.localstack import Service

Counters = dict[str, float]


def scrape(service: Service) -> Counters:
    """Return every kvdiag counter of a service; empty where it does not answer."""
    try:
        status, page = get(service.port, "/metrics")
    except (OSError, http.client.HTTPException):
        return {}
    if status != http.client.OK:
        return {}
    families = text_string_to_metric_families(page.decode())
    samples = (sample for family in families if family.type == "counter" for sample in family.samples)
    return {
        _series(sample.name, sample.labels): sample.value
        for sample in samples
        if sample.name.startswith("kvdiag_") and sample.name.endswith("_total")
    }


def rose(before: Counters, after: Counters) -> Counters:
    """Return by how much counters rose; one that fell was set back by a restart."""
    grown = {
        name: value - (before.get(name, 0.0) if value >= before.get(name, 0.0) else 0.0)
        for name, value in after.items()
    }
    return {name: value for name, value in grown.items() if value > 0}


def _series(name: str, labels: dict[str, str]) -> str:
    own = {key: value for key, value in labels.items() if key not in {"model_name", "engine"}}
    inner = ",".join(f"{key}={value}" for key, value in sorted(own.items()) if value)
    return f"{name}{{{inner}}}" if inner else name
