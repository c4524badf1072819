"""A histogram for one writing thread: prometheus_client's takes two locks and a search through all buckets for each value.

In the router, which observes seven values a turn, that was a tenth of a turn's CPU time.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import CollectorRegistry


class Series:
    """One set of label values. Only one thread may observe; another may read meanwhile, a value late at worst."""

    __slots__ = ("_bounds", "counts", "exemplars", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * len(bounds)
        self.exemplars: dict[int, Exemplar] = {}
        self.sum = 0.0

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Count a value; the exemplar's labels take the place of its bucket's last one."""
        bucket = bisect_left(self._bounds, amount)
        self.counts[bucket] += 1
        self.sum += amount
        if exemplar is not None:
            self.exemplars[bucket] = Exemplar(exemplar, amount, time.time())


class OneThreadHistogram(Collector):
    """A family of such series, with the parts of prometheus_client's interface that `Metrics` uses."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labelnames: Sequence[str],
        *,
        registry: CollectorRegistry,
        buckets: Sequence[float],
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labelnames = labelnames
        self._bounds = (*(bound for bound in buckets if bound != math.inf), math.inf)
        self._series: dict[tuple[str, ...], Series] = {}
        if not labelnames:
            self.labels()
        registry.register(self)

    def labels(self, *values: str) -> Series:
        """Return the series with these label values."""
        if len(values) != len(self._labelnames):
            raise ValueError(f"{self._name} has the labels {list(self._labelnames)}, not {list(values)}")
        found = self._series.get(values)
        if found is None:
            found = self._series[values] = Series(self._bounds)
        return found

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """Yield the empty family: what a registry compares names by."""
        yield HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the family as it stands."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for values, series in list(self._series.items()):
            family.add_metric(values, _buckets(self._bounds, series), series.sum)
        yield family


def _buckets(bounds: Sequence[float], series: Series) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
    for place, total in enumerate(accumulate(series.counts)):
        bound: str = floatToGoString(bounds[place])  # type: ignore[no-untyped-call]
        exemplar = series.exemplars.get(place)
        buckets.append((bound, total) if exemplar is None else (bound, total, exemplar))
    return buckets
