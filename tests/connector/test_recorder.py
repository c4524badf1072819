"""Items become the metrics of the catalogue and lines of the event log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry

from kvdiag.connector.recorder import PEERS, EngineRecorder
from kvdiag.exporters.jsonl import JsonlSink
from kvdiag.exporters.prometheus import Metrics

from .conftest import settings

if TYPE_CHECKING:
    from pathlib import Path

P2D, D2P = "prefill_to_decode", "decode_to_prefill"


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def recorder(registry: CollectorRegistry) -> EngineRecorder:
    return EngineRecorder(Metrics("connector", registry), settings(), None)


def event(kind: str, **fields: Any) -> list[Any]:  # noqa: ANN401 - fields of an event
    return ["event", {"t": 0.0, "request_id": "r", "role": "prefill", "engine_id": "e", "kind": kind} | fields]


@pytest.mark.parametrize(
    ("item", "name", "labels", "value"),
    [
        (event("match", cause="remote_hit", tokens=70, local_tokens=20, prompt_tokens=100), "kvdiag_matches_total", {"cause": "remote_hit", "detail": ""}, 1),
        (event("match", cause="remote_hit", tokens=70, local_tokens=20, prompt_tokens=100), "kvdiag_matched_tokens_total", {"source": "computed"}, 10),
        (event("match", cause="made_up", detail="<x>"), "kvdiag_matches_total", {"cause": "unexplained", "detail": ""}, 1),
        (event("match", role="decode", cause="remote_hit"), "kvdiag_matches_total", {"cause": "remote_hit", "detail": ""}, 0),
        (event("match", cause="missing_metadata", detail="consumed", direction=D2P, lost_tokens=7), "kvdiag_lost_tokens_total", {"cause": "missing_metadata", "detail": "consumed"}, 7),
        (event("decline", cause="prefix_diverged", detail="in_response", direction=D2P, lost_tokens=9), "kvdiag_lost_tokens_total", {"cause": "prefix_diverged", "detail": "in_response"}, 9),
        (event("decline", cause="expired_remote_read", detail="declined", direction=D2P), "kvdiag_expiries_total", {"kind": "read_declined"}, 1),
        (event("failure", cause="transfer_failed", direction=P2D), "kvdiag_transfer_failures_total", {"direction": P2D}, 1),
        (event("failure", cause="suspect_kv", direction=D2P), "kvdiag_expiries_total", {"kind": "read_after_release"}, 1),
        (event("failure", cause="suspect_kv", direction=D2P), "kvdiag_transfer_failures_total", {"direction": D2P}, 0),
        (event("transfer", direction=D2P, bytes=5, seconds=0.1, wait_s=0.2), "kvdiag_transfer_bytes_total", {"direction": D2P}, 5),
        (event("transfer", direction=D2P, bytes=5, seconds=0.1, wait_s=0.2), "kvdiag_transfer_seconds_sum", {"direction": D2P}, 0.1),
        (event("transfer", direction=D2P, bytes=5, seconds=0.1, wait_s=0.2), "kvdiag_read_wait_seconds_sum", {"direction": D2P}, 0.2),
        (event("release", direction=D2P, release="expired", seconds=3, bytes=10), "kvdiag_retained_byte_seconds_total", {"release": "expired"}, 30),
        (event("release", direction=D2P, release="expired", seconds=3, bytes=10), "kvdiag_expiries_total", {"kind": "idle_ended"}, 1),
        (event("release", direction=P2D, release="expired", seconds=3, bytes=10), "kvdiag_expiries_total", {"kind": "lease_lapsed"}, 1),
        (event("release", direction=P2D, release="read", seconds=3, bytes=10), "kvdiag_retained_byte_seconds_total", {"release": "read"}, 0),
        (event("transfer", direction=D2P, bytes=5, post_seconds=0.5, descriptors=8), "kvdiag_transfer_post_seconds_sum", {"direction": D2P}, 0.5),
        (event("transfer", direction=D2P, bytes=5, post_seconds=0.5, descriptors=8), "kvdiag_transfer_descriptors_total", {"direction": D2P}, 8),
        (event("transfer", direction=D2P, bytes=5, peer="d:1"), "kvdiag_peer_transfer_bytes_total", {"direction": D2P, "peer": "d:1"}, 5),
        (event("failure", cause="transfer_failed", direction=P2D, peer="d:1"), "kvdiag_peer_transfer_failures_total", {"direction": P2D, "peer": "d:1"}, 1),
        (["cache", 100], "kvdiag_kv_cache_blocks", {}, 100),
        (["retained", 2, 30, 4096], "kvdiag_retained_blocks", {}, 30),
        (["kept", 5, 6], "kvdiag_response_tokens_total", {"kept": "no"}, 6),
        (["unverified"], "kvdiag_unverified_reads_total", {}, 1),
        (["handshake", "e", 0.5, None, None], "kvdiag_handshake_seconds_sum", {}, 0.5),
        (["dropped", 12], "kvdiag_dropped_events_total", {"sink": "queue"}, 12),
        (["error", "somewhere"], "kvdiag_connector_errors_total", {}, 1),
    ],
)  # fmt: skip
def test_each_item_counts(
    recorder: EngineRecorder,
    registry: CollectorRegistry,
    item: list[Any],
    name: str,
    labels: dict[str, str],
    value: float,
) -> None:
    recorder.record(item)
    assert registry.get_sample_value(name, labels) == value


def test_the_configuration_is_exposed(recorder: EngineRecorder, registry: CollectorRegistry) -> None:
    recorder.introduce("16", "0.32.0", "1.5.1")
    labels = {
        "role": "prefill", "bidirectional": "true", "ttl_seconds": "480", "recompute_threshold": "64", "failure_policy": "fail",
        "block_size": "16", "engine_id": "engine-p", "vllm": "0.32.0", "nixl": "1.5.1", "verify": "on",
    }  # fmt: skip
    assert registry.get_sample_value("kvdiag_connector_info", labels) == 1
    assert registry.get_sample_value("kvdiag_retention_ttl_seconds") == 0, "prefill holds nothing for later turns"


def test_decode_tells_for_how_long_it_holds_blocks(registry: CollectorRegistry) -> None:
    EngineRecorder(Metrics("connector", registry), settings(role="decode"), None).introduce("", "", "")
    assert registry.get_sample_value("kvdiag_retention_ttl_seconds") == 480


def test_peers_beyond_the_first_so_many_share_a_label_value(
    recorder: EngineRecorder, registry: CollectorRegistry
) -> None:
    for number in range(PEERS + 3):
        recorder.record(event("transfer", direction=D2P, peer=f"host-{number}:1"))
    assert registry.get_sample_value("kvdiag_peer_transfers_total", {"direction": D2P, "peer": "other"}) == 3


def test_the_event_log_holds_the_schema_and_no_trace_header(registry: CollectorRegistry, tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "events.jsonl", on_drop=lambda: pytest.fail("dropped"))
    EngineRecorder(Metrics("connector", registry), settings(), sink).record(event("match", traceparent="00-a-b-01"))
    sink.close()
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "schema": "kvdiag.kv/1", "ts": "1970-01-01T00:00:00.000Z", "request_id": "r", "role": "prefill", "engine_id": "e", "kind": "match",
    }  # fmt: skip


def test_a_log_that_cannot_be_written_costs_events_only(registry: CollectorRegistry, tmp_path: Path) -> None:
    metrics = Metrics("connector", registry)
    sink = JsonlSink(
        tmp_path / "no" / "such" / "folder", on_drop=metrics.counter("kvdiag_dropped_events_total", "jsonl").inc
    )
    EngineRecorder(metrics, settings(), sink).record(event("match", cause="first_turn"))
    sink.close()
    assert registry.get_sample_value("kvdiag_dropped_events_total", {"sink": "jsonl"}) == 1
    assert registry.get_sample_value("kvdiag_matches_total", {"cause": "first_turn", "detail": ""}) == 1
