from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from kvdiag.catalogue import METRICS, Emitter, Metric

ROOT: Final = Path(__file__).parent.parent
SOURCES: Final[dict[Emitter, str]] = {
    "connector": "connector/*.py",
    "router": "router/*.py",
    "log": "exporters/observed.py",
}
"""The modules that emit."""

METRIC = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)


@METRIC
def test_names_follow_prometheus_conventions(metric: Metric) -> None:
    assert re.fullmatch(r"kvdiag_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.type == "counter")
    if metric.unit in {"seconds", "bytes"} and metric.type != "counter":
        assert metric.name.endswith(f"_{metric.unit}")


@METRIC
def test_help_is_a_sentence(metric: Metric) -> None:
    assert metric.help[0].isupper() or metric.help.startswith("kvdiag")
    assert metric.help.endswith(".") or "; " in metric.help


@METRIC
def test_labels_are_bounded(metric: Metric) -> None:
    """A label is either enumerated or its bound is stated; no label can carry a conversation or request."""
    assert not {"conversation", "request_id", "session"} & set(metric.labels)
    if any(values is None for values in metric.labels.values()):
        assert metric.bound


@METRIC
def test_histograms_have_rising_buckets_and_nothing_else_has_any(metric: Metric) -> None:
    assert bool(metric.buckets) == (metric.type == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))


@METRIC
def test_rows_to_pre_create_fit_the_labels(metric: Metric) -> None:
    assert all(len(row) == len(metric.labels) for row in metric.label_rows)


@pytest.mark.parametrize("emitter", SOURCES)
def test_every_metric_is_emitted_by_whom_the_catalogue_says(emitter: Emitter) -> None:
    """A metric that nobody counts is exposed all the same, as a zero that looks like health."""
    code = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob(SOURCES[emitter]))
    silent = [name for name, metric in METRICS.items() if emitter in metric.emitter and f'"{name}"' not in code]
    assert not silent, f"nothing in {SOURCES[emitter]} names {silent}: emit it there, or mend `emitter` in catalogue.py"


def test_the_names_of_the_contract_are_all_there() -> None:
    """Other people's dashboards rest on these names: this set only grows."""
    assert {
        *("kvdiag_turns_total", "kvdiag_turn_ttft_seconds", "kvdiag_prefill_seconds", "kvdiag_handoff_seconds"),
        *("kvdiag_inter_turn_gap_seconds", "kvdiag_prompt_tokens_total", "kvdiag_lost_tokens_total"),
        *("kvdiag_transfer_bytes_total", "kvdiag_transfer_seconds", "kvdiag_transfer_failures_total"),
        *("kvdiag_retained_requests", "kvdiag_retained_blocks", "kvdiag_retained_bytes"),
        *("kvdiag_retained_byte_seconds_total", "kvdiag_retention_seconds", "kvdiag_router_handles"),
        *("kvdiag_router_lookups_total", "kvdiag_router_retries_total", "kvdiag_router_upstream_errors_total"),
        *("kvdiag_connector_info", "kvdiag_build_info"),
    } <= set(METRICS)
