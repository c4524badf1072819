"""What Prometheus would have seen of one scenario: every service scraped while it ran."""

from __future__ import annotations

import http.client
import threading
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Self

from prometheus_client.parser import text_string_to_metric_families

from kvdiag.localstack.process import get

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvdiag.localstack import Service

INTERVAL_S: Final = 2
_WANTED: Final = (
    "kvdiag_",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions",
    "vllm:request_queue_time_seconds",
)

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Series:
    """One time series, a sample every `INTERVAL_S`. Counters start at 0 and survive restarts: they hold rises only."""

    name: str
    labels: dict[str, str]
    values: list[float | None]
    counter: bool
    calm: int = 0
    """How many of the samples show the usual state, before the fault; 0 where a scenario does not tell them apart."""

    @property
    def rise(self) -> float:
        """Return by how much a counter rose."""
        return last(self.values)

    def as_json(self) -> dict[str, object]:
        """Return what `Series(**…)` takes."""
        return asdict(self)


def last(values: Sequence[float | None]) -> float:
    """Return the last sample that there is, 0 where there is none."""
    return next((value for value in reversed(values) if value is not None), 0.0)


class Recorder:
    """Context manager: scrapes from entry to exit, whatever `watch` has named by then."""

    def __init__(self) -> None:
        self._targets: list[tuple[str, Service]] = []
        self._rounds: list[dict[tuple[str, str], str]] = []
        self._calm = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._scrape_on, name="recorder")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._scrape()

    def watch(self, job: str, service: Service) -> None:
        """Scrape this service from now on, under the job's name."""
        self._targets.append((job, service))

    def take_for_usual(self) -> None:
        """Take everything scraped so far for the usual state."""
        self._calm = len(self._rounds)

    def _scrape_on(self) -> None:
        while not self._over.is_set():
            self._scrape()
            self._over.wait(INTERVAL_S)

    def _scrape(self) -> None:
        # Parsed at the end: a scenario shall not share its cores with a parser.
        pages = {(job, service.name): _page(service) for job, service in tuple(self._targets)}
        self._rounds.append({target: page for target, page in pages.items() if page})

    def series(self) -> list[Series]:
        """Return the series in which anything happened."""
        raw: dict[tuple[str, Labels], list[float | None]] = defaultdict(lambda: [None] * len(self._rounds))
        counters = set()
        for number, pages in enumerate(self._rounds):
            for target, page in pages.items():
                for name, labels, value, counter in _samples(*target, page):
                    raw[name, labels][number] = value
                    if counter:
                        counters.add(name)
        found = [
            Series(name, dict(labels), rises(values) if name in counters else values, name in counters, self._calm)
            for (name, labels), values in sorted(raw.items())
        ]
        return [one for one in found if any(one.values)]


def _page(service: Service) -> str:
    try:
        status, page = get(service.port, "/metrics")
    except (OSError, http.client.HTTPException):
        return ""
    return page.decode() if status == http.client.OK else ""


def _samples(job: str, instance: str, page: str) -> Iterator[tuple[str, Labels, float, bool]]:
    for family in text_string_to_metric_families(page):
        if not family.name.startswith(_WANTED):
            continue
        for sample in family.samples:
            labels = sample.labels | {"job": job, "instance": instance}
            rises = family.type in {"counter", "histogram"}
            yield sample.name, tuple(sorted(labels.items())), sample.value, rises


def rises(values: list[float | None]) -> list[float | None]:
    """Return a counter as what it added since the first scrape; a fall is a restart from 0."""
    total, before = 0.0, None
    rises: list[float | None] = []
    for value in values:
        if value is not None:
            if before is not None:
                total += value - before if value >= before else value
            elif rises:
                # The service started meanwhile, or gave birth to the series: it began at 0.
                total += value
            before = value
        rises.append(None if value is None else total)
    return rises
