"""The one-thread histogram says what prometheus_client's says."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from kvdiag.exporters.histogram import OneThreadHistogram

BUCKETS = (0.0, 0.005, 0.1, 1.0, 60.0)
NAMES = ("cause", "turn")


def exposition(kind: type[Histogram | OneThreadHistogram], values: list[float], labels: tuple[str, ...]) -> list[str]:
    registry = CollectorRegistry()
    names = NAMES[: len(labels)]
    family = kind("kvdiag_some_seconds", "Some.", names, registry=registry, buckets=BUCKETS)
    child = family.labels(*labels) if labels or isinstance(family, OneThreadHistogram) else family
    for number, value in enumerate(values):
        child.observe(value, {"trace_id": f"{number:032x}"} if number % 2 else None)
    openmetrics: bytes = generate_openmetrics(registry)  # type: ignore[no-untyped-call]
    text = generate_latest(registry).decode() + openmetrics.decode()
    # When a series was made and an exemplar was seen differs from run to run.
    lines = [re.sub(r" \d{10}\.\d+$", "", line) for line in text.splitlines()]
    return [line for line in lines if "_created" not in line]


@given(
    values=st.lists(st.one_of(st.sampled_from(BUCKETS), st.floats(0, 1e6)), max_size=20),
    labels=st.sampled_from([(), ("remote_hit",), ("remote_hit", "2-4")]),
)
def test_it_counts_as_the_library_counts(values: list[float], labels: tuple[str, ...]) -> None:
    assert exposition(OneThreadHistogram, values, labels) == exposition(Histogram, values, labels)


def test_wrong_labels_and_a_name_twice_are_refused() -> None:
    registry = CollectorRegistry()
    family = OneThreadHistogram("kvdiag_some_seconds", "Some.", NAMES, registry=registry, buckets=BUCKETS)
    with pytest.raises(ValueError, match=r"has the labels \['cause', 'turn'\]"):
        family.labels("remote_hit")
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        OneThreadHistogram("kvdiag_some_seconds", "Some.", NAMES, registry=registry, buckets=BUCKETS)
