"""A scraped `/metrics` page as numbers that can be asked for."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Mapping

Labels = dict[str, str]


class Samples:
    """The samples of one page, by sample name (`..._total`, `..._bucket`)."""

    def __init__(self, series: Mapping[str, list[tuple[Labels, float]]]) -> None:
        self._series = series

    @classmethod
    def parse(cls, page: str) -> Samples:
        """Read the text format; raise ValueError where it is something else."""
        series: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                series[sample.name].append((dict(sample.labels), float(sample.value)))
        return cls(series)

    def __len__(self) -> int:
        return len(self._series)

    def has(self, prefix: str) -> bool:
        """Return whether any sample's name starts with `prefix`."""
        return any(name.startswith(prefix) for name in self._series)

    def rows(self, name: str) -> list[tuple[Labels, float]]:
        """Return the samples of that name, each with its labels."""
        return self._series.get(name, [])

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum over the samples with these labels, None where the series is absent."""
        values = [value for found, value in self.rows(name) if labels.items() <= found.items()]
        return sum(values) if values else None

    def by(self, name: str, *keys: str) -> dict[tuple[str, ...], float]:
        """Return sums by the values of these labels."""
        sums: dict[tuple[str, ...], float] = defaultdict(float)
        for labels, value in self.rows(name):
            sums[tuple(labels.get(key, "") for key in keys)] += value
        return dict(sums)

    def label(self, name: str, key: str) -> str | None:
        """Return a label of an info-like series, None where it is absent or empty."""
        return next((labels[key] for labels, _ in self.rows(name) if labels.get(key)), None)
