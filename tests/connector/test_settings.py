"""What an operator sets is what the connector does, or a clear refusal at start."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvdiag.connector.settings import Settings
from kvdiag.errors import InputError


def config(role: str = "kv_producer", endpoint: str | None = None, **extra: object) -> Any:  # noqa: ANN401 - vLLM's
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_role=role, engine_id="e", kv_connector_extra_config=extra, kv_load_failure_policy="fail"
        ),
        observability_config=SimpleNamespace(otlp_traces_endpoint=endpoint),
    )


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVDIAG_EVENT_LOG", raising=False)


def test_defaults_are_upstreams_with_verification_on() -> None:
    found = Settings.of(config())
    assert (found.role, found.bidirectional, found.decode_ttl_s, found.recompute_threshold) == (
        "prefill",
        False,
        480,
        64,
    )
    assert (found.verify, found.event_log, found.traces_endpoint) == (True, None, None)


@pytest.mark.parametrize(
    ("role", "expected"), [("kv_producer", "prefill"), ("kv_consumer", "decode"), ("kv_both", None)]
)
def test_the_role_is_vllms(role: str, expected: str | None) -> None:
    assert Settings.of(config(role)).role == expected


def test_the_event_log_comes_from_the_configuration_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVDIAG_EVENT_LOG", "/tmp/by-environment")
    assert Settings.of(config()).event_log == Path("/tmp/by-environment")
    assert Settings.of(config(kvdiag_event_log="/tmp/set")).event_log == Path("/tmp/set")


def test_metrics_are_pushed_only_where_an_endpoint_is_named() -> None:
    assert Settings.of(config()).metrics_endpoint is None
    assert Settings.of(config(kvdiag_otlp_metrics="http://c:4318")).metrics_endpoint == "http://c:4318"


def test_spans_follow_vllms_endpoint_unless_turned_off() -> None:
    assert Settings.of(config(endpoint="http://c:4317")).traces_endpoint == "http://c:4317"
    assert Settings.of(config(endpoint="http://c:4317", kvdiag_traces=False)).traces_endpoint is None


@pytest.mark.parametrize(
    ("role", "extra", "policy"),
    [
        ("kv_producer", {}, "recompute"),
        ("kv_producer", {"kvdiag_recompute_failed_reads": False}, "fail"),
        ("kv_consumer", {}, "fail"),
        ("kv_both", {}, "fail"),
    ],
)
def test_prefill_computes_what_a_failed_read_did_not_bring(role: str, extra: dict[str, Any], policy: str) -> None:
    found = Settings.of(config(role, **extra))
    assert (found.failure_policy, found.recomputes_failed_reads) == (policy, policy == "recompute")


def test_reads_are_given_up_after_half_a_minute_unless_told_otherwise() -> None:
    assert Settings.of(config()).read_timeout_s == 20
    assert Settings.of(config(kvdiag_read_timeout_s=2.5)).read_timeout_s == 2.5


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"kvdiag_verify": "no"}, "kvdiag_verify"),
        ({"kvdiag_read_timeout_s": "30"}, "kvdiag_read_timeout_s"),
        ({"kvdiag_read_timeout_s": -1}, "kvdiag_read_timeout_s"),
        ({"kvdiag_read_timeout_s": True}, "kvdiag_read_timeout_s"),
        ({"kvdiag_recompute_failed_reads": "no"}, "kvdiag_recompute_failed_reads"),
        ({"kvdiag_peer_addresses": 1}, "kvdiag_peer_addresses"),
        ({"kvdiag_traces": 1}, "kvdiag_traces"),
        ({"kvdiag_event_log": 7}, "kvdiag_event_log"),
        ({"kvdiag_event_logs": "x"}, "kvdiag_event_logs is not a setting"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(extra: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        Settings.of(config(**extra))
