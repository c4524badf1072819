"""Prometheus metrics built from the catalogue."""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from prometheus_client import Counter, Gauge, Histogram

from kvdiag.catalogue import METRICS, Emitter, Metric
from kvdiag.exporters.histogram import OneThreadHistogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric as Family

_Family = TypeVar("_Family", Counter, Gauge, Histogram)


class Observer(Protocol):
    """A histogram's child."""

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Count a value."""
        ...


class Metrics:
    """The metrics of one emitter, registered once, children pre-created so that rates start at 0.

    Look a metric up once and keep the child that `counter`, `gauge` or `histogram` returns: the look-up costs
    more than the increment. `one_thread` says that only one thread observes, which makes histograms much cheaper.
    """

    def __init__(
        self,
        emitter: Emitter,
        registry: CollectorRegistry,
        *,
        constant: dict[str, str] | None = None,
        one_thread: bool = False,
    ) -> None:
        self._constant = constant or {}
        self._histogram = OneThreadHistogram if one_thread else Histogram
        self._families: dict[str, Counter | Gauge | Histogram | OneThreadHistogram] = {
            metric.name: self._family(metric, registry) for metric in METRICS.values() if emitter in metric.emitter
        }
        self._create_children()

    def sibling(self, constant: dict[str, str]) -> Self:
        """Return the same families seen with other values of the constant labels: one per engine in a process."""
        if list(constant) != list(self._constant):
            raise ValueError(f"constant labels are {list(self._constant)}, not {list(constant)}")
        other = copy.copy(self)
        other._constant = constant
        other._create_children()
        return other

    def _create_children(self) -> None:
        for name, family in self._families.items():
            for row in _rows(METRICS[name]):
                if values := (*self._constant.values(), *row):
                    family.labels(*values)

    def _family(self, metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram | OneThreadHistogram:
        labels = (*self._constant, *metric.labels)
        if metric.type == "counter":
            return Counter(metric.name, metric.help, labels, registry=registry)
        if metric.type == "histogram":
            return self._histogram(metric.name, metric.help, labels, registry=registry, buckets=metric.buckets)
        return Gauge(metric.name, metric.help, labels, registry=registry, multiprocess_mode=metric.multiprocess_mode)

    def collect(self) -> Iterator[Family]:
        """Yield these families as they stand, every sibling's children included."""
        for family in self._families.values():
            yield from family.collect()

    def counter(self, name: str, *labels: str) -> Counter:
        """Return the child of a counter for these label values."""
        return self._child(name, Counter, labels)

    def gauge(self, name: str, *labels: str) -> Gauge:
        """Return the child of a gauge for these label values."""
        return self._child(name, Gauge, labels)

    def histogram(self, name: str, *labels: str) -> Observer:
        """Return the child of a histogram for these label values."""
        family = self._families[name]
        if isinstance(family, OneThreadHistogram):
            return family.labels(*self._constant.values(), *labels)
        return self._child(name, Histogram, labels)

    def _child(self, name: str, kind: type[_Family], labels: tuple[str, ...]) -> _Family:
        family = self._families[name]
        if not isinstance(family, kind):
            raise TypeError(f"{name} is a {type(family).__name__}, not a {kind.__name__}")
        values = (*self._constant.values(), *labels)
        return family.labels(*values) if values else family


def _rows(metric: Metric) -> tuple[tuple[str, ...], ...]:
    if metric.label_rows:
        return metric.label_rows
    values = [v for v in metric.labels.values() if v is not None]
    return tuple(itertools.product(*values)) if len(values) == len(metric.labels) else ()
