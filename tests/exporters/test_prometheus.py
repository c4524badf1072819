"""The exposition is what the catalogue says: names, help, types, labels, buckets, children."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final, get_args

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kvdiag.catalogue import METRICS, Emitter, Metric
from kvdiag.exporters.prometheus import Metrics

EMITTERS: Final[tuple[Emitter, ...]] = get_args(Emitter)
GOLDEN: Final = Path(__file__).parent / "golden"


def exposition(emitter: Emitter, constant: dict[str, str] | None = None) -> str:
    registry = CollectorRegistry()
    Metrics(emitter, registry, constant=constant)
    return generate_latest(registry).decode()


def outline(text: str) -> str:
    """Return the exposition with the first child of each family, and how many there are; `_created` left out."""
    lines: list[str] = []
    for family in text_string_to_metric_families(text):
        if family.name.endswith("_created"):
            continue
        children = {tuple(sorted((k, v) for k, v in s.labels.items() if k != "le")): None for s in family.samples}
        first = next(iter(children), ())
        lines += [f"# HELP {family.name} {family.documentation}", f"# TYPE {family.name} {family.type}"]
        lines += [f"# CHILDREN {len(children)}"]
        for sample in family.samples:
            if tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le")) == first:
                lines.append(f"{sample.name}{json.dumps(sample.labels)} {sample.value:g}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("emitter", EMITTERS)
def test_exposition_is_the_golden_one(emitter: Emitter) -> None:
    """`KVDIAG_UPDATE_GOLDEN=1` rewrites the file; a change there is a change of contract."""
    golden = GOLDEN / f"{emitter}.txt"
    now = outline(exposition(emitter))
    if os.environ.get("KVDIAG_UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(now)
    assert now == golden.read_text(), "a change of contract; KVDIAG_UPDATE_GOLDEN=1 writes it"


@pytest.mark.parametrize("emitter", EMITTERS)
def test_exposes_exactly_the_emitters_metrics(emitter: Emitter) -> None:
    families = {f.name for f in text_string_to_metric_families(exposition(emitter)) if not f.name.endswith("_created")}
    assert families == {m.name.removesuffix("_total") for m in METRICS.values() if emitter in m.emitter}


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
class TestCatalogue:
    def test_counters_end_in_total_and_nothing_else_does(self, metric: Metric) -> None:
        assert metric.name.endswith("_total") is (metric.type == "counter")

    def test_the_unit_is_in_the_name(self, metric: Metric) -> None:
        assert metric.unit in metric.name

    def test_labels_known_only_at_run_time_say_what_bounds_them(self, metric: Metric) -> None:
        open_ended = [label for label, values in metric.labels.items() if values is None]
        assert bool(metric.bound) is bool(open_ended)

    def test_label_rows_fit_the_labels(self, metric: Metric) -> None:
        for row in metric.label_rows:
            for (label, values), value in zip(metric.labels.items(), row, strict=True):
                assert values is None or value in values, label

    def test_no_label_can_hold_a_conversation_or_request(self, metric: Metric) -> None:
        assert not {"conversation", "conversation_id", "request_id", "user", "prompt_text"} & set(metric.labels)

    def test_buckets_rise(self, metric: Metric) -> None:
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert bool(metric.buckets) is (metric.type == "histogram")


def test_children_exist_before_the_first_event_so_that_rates_start_at_zero() -> None:
    text = exposition("router")
    assert 'kvdiag_turns_total{cause="missing_metadata",detail="consumed",turn="2-4"} 0.0' in text
    assert 'kvdiag_router_lookups_total{result="stale"} 0.0' in text
    assert 'kvdiag_turn_ttft_seconds_count{arm="holdout",cause="remote_hit",turn="10+"} 0.0' in text


def test_constant_labels_come_first_and_on_every_series() -> None:
    text = exposition("connector", {"model_name": "m", "engine": "0"})
    samples = [s for f in text_string_to_metric_families(text) for s in f.samples]
    assert samples
    assert all(s.labels["model_name"] == "m" and s.labels["engine"] == "0" for s in samples)


def test_a_metric_without_labels_of_its_own_exists_at_once_too() -> None:
    text = exposition("connector", {"engine": "0"})
    assert 'kvdiag_retained_blocks{engine="0"} 0.0' in text
    assert "\nkvdiag_retained_blocks 0.0" in exposition("connector")


def test_a_child_is_found_by_its_label_values_in_catalogue_order() -> None:
    registry = CollectorRegistry()
    metrics = Metrics("connector", registry, constant={"engine": "0"})
    metrics.counter("kvdiag_transfer_bytes_total", "decode_to_prefill").inc(5)
    labels = {"engine": "0", "direction": "decode_to_prefill"}
    assert registry.get_sample_value("kvdiag_transfer_bytes_total", labels) == 5


def test_asking_for_the_wrong_kind_is_a_programming_error() -> None:
    with pytest.raises(TypeError, match="kvdiag_retained_blocks is a Gauge, not a Counter"):
        Metrics("connector", CollectorRegistry()).counter("kvdiag_retained_blocks")


_WORKER: Final = """
import sys
from prometheus_client import CollectorRegistry
from kvdiag.exporters.prometheus import Metrics
metrics = Metrics("connector", CollectorRegistry(), constant={"engine": sys.argv[1]})
metrics.counter("kvdiag_transfer_bytes_total", "decode_to_prefill").inc(10)
metrics.gauge("kvdiag_retained_blocks").set(3)
metrics.gauge("kvdiag_build_info", "0").set(1)
metrics.histogram("kvdiag_retention_seconds", "read").observe(1.5)
print("ready", flush=True)
sys.stdin.read()
"""
_SCRAPE: Final = """
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
registry = CollectorRegistry()
MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_works_across_processes(tmp_path: Path) -> None:
    """Two live API servers of one engine: counters and histograms add up, of a gauge the latest counts."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, "0"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        text = subprocess.run(
            [sys.executable, "-c", _SCRAPE], env=environment, check=True, capture_output=True, text=True, timeout=60
        ).stdout
    finally:
        for worker in workers:
            worker.communicate(timeout=60)
    lines = set(text.splitlines())
    assert 'kvdiag_transfer_bytes_total{direction="decode_to_prefill",engine="0"} 20.0' in lines
    assert 'kvdiag_retention_seconds_count{engine="0",release="read"} 2.0' in lines
    assert 'kvdiag_retained_blocks{engine="0"} 3.0' in lines
    assert 'kvdiag_build_info{engine="0",version="0"} 1.0' in lines
    assert "pid=" not in text


def test_two_engines_of_one_process_share_the_families() -> None:
    registry = CollectorRegistry()
    first = Metrics("connector", registry, constant={"engine": "0"})
    second = first.sibling({"engine": "1"})
    first.counter("kvdiag_connector_errors_total").inc()
    second.counter("kvdiag_connector_errors_total").inc(2)
    values = [registry.get_sample_value("kvdiag_connector_errors_total", {"engine": e}) for e in "01"]
    assert values == [1, 2]
    with pytest.raises(ValueError, match="constant labels"):
        first.sibling({"rank": "1"})
