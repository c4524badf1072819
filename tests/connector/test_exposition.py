"""vLLM's API server: stats in, metrics and event log out, whatever the stats hold."""

from __future__ import annotations

import atexit
import json
import os
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from tests.exporters.collector import attributes, over_http

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")  # importing vLLM and torch warns in many ways

EVENT = {"t": 0.0, "request_id": "r", "role": "prefill", "engine_id": "e", "kind": "match", "cause": "first_turn"}


@pytest.fixture
def build(tmp_path: Path) -> Callable[[], Any]:
    """Return what vLLM's stat logger does when it starts; it may start more than once in a process."""
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    from vllm.v1.metrics.prometheus import unregister_vllm_metrics

    from kvdiag.connector import KvdiagNixlConnector

    extra: dict[str, object] = {"kvdiag_event_log": str(tmp_path / "events.jsonl")}
    transfer = SimpleNamespace(kv_role="kv_producer", engine_id="e", kv_connector_extra_config=extra)
    config = SimpleNamespace(
        kv_transfer_config=transfer,
        observability_config=SimpleNamespace(otlp_traces_endpoint=None),
        cache_config=SimpleNamespace(block_size=16),
    )

    def make(**more: object) -> Any:  # noqa: ANN401 - vLLM's
        extra.update(more)
        unregister_vllm_metrics()
        types = {kind: kind for kind in (Gauge, Counter, Histogram)}
        values: dict[int, list[object]] = {0: ["model", "0"], 1: ["model", "1"]}
        return KvdiagNixlConnector.build_prom_metrics(config, types, ["model_name", "engine"], values)

    return make


def test_metrics_are_pushed_too_where_that_is_asked_for(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a process and ours alone, however often vLLM builds its loggers; a bad endpoint costs a warning."""
    from kvdiag.connector import exposition

    monkeypatch.setattr(exposition, "_pushes", {})
    build(kvdiag_otlp_metrics="no such thing")
    assert not exposition._pushes
    with over_http() as collector:
        build(kvdiag_otlp_metrics=collector.url)
        build(kvdiag_otlp_metrics=collector.url)
        (pushing,) = exposition._pushes.values()
        atexit.unregister(pushing.close)
        pushing.close()
        arrived = collector.last_push
        assert {"kvdiag_matches", "kvdiag_retained_blocks"} <= set(arrived)
        assert all(name.startswith("kvdiag_") for name in arrived)
        assert {attributes(p)["engine"] for p in arrived["kvdiag_retained_blocks"].gauge.data_points} == {"0", "1"}
        assert attributes(collector.metrics[-1].resource)["service.name"] == "kvdiag-prefill"


def stats(*items: list[Any]) -> dict[str, Any]:
    from kvdiag.connector import upstream

    return upstream.stats_with(None, list(items)).data  # type: ignore[no-any-return]


def value(name: str, engine: int, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, {"model_name": "model", "engine": str(engine)} | labels) or 0.0


def test_each_engine_counts_for_itself_and_broken_items_cost_themselves_only(build: Callable[[], Any]) -> None:
    exposed = build()
    first = {"cause": "first_turn", "detail": ""}
    before = [value("kvdiag_matches_total", engine, **first) for engine in (0, 1)]
    errors = value("kvdiag_connector_errors_total", 1)
    exposed.observe(
        stats(["event", dict(EVENT)], ["no such kind"], [], ["event", {"t": "x"}], ["event", dict(EVENT)]), 1
    )
    assert [value("kvdiag_matches_total", engine, **first) for engine in (0, 1)] == [before[0], before[1] + 2]
    assert value("kvdiag_connector_errors_total", 1) == errors + 3


def test_a_second_start_in_the_process_counts_on(build: Callable[[], Any]) -> None:
    build()
    build().observe(stats(["retained", 1, 2, 3]), 0)
    assert value("kvdiag_retained_blocks", 0) == 2


def test_stats_of_a_stock_worker_are_recorded_as_upstream_does(build: Callable[[], Any]) -> None:
    plain = stats()
    del plain["kvdiag"]
    build().observe(plain, 0)


def test_events_reach_the_log(build: Callable[[], Any], tmp_path: Path) -> None:
    build().observe(stats(["event", dict(EVENT)]), 0)
    deadline = time.monotonic() + 10
    log = tmp_path / "events.jsonl"
    while not (log.exists() and log.read_text().endswith("\n")) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert json.loads(log.read_text())["cause"] == "first_turn"
