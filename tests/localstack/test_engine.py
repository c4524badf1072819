from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvdiag.errors import MissingStackError
from kvdiag.localstack import engine
from kvdiag.localstack.engine import EngineOptions, engine_service


def transfer_config(options: EngineOptions) -> dict[str, Any]:
    command = [str(part) for part in engine_service("p", "prefill", Path("m"), Path("logs"), options).command]
    config: dict[str, Any] = json.loads(command[command.index("--kv-transfer-config") + 1])
    return config


def test_options_reach_the_transfer_config() -> None:
    config = transfer_config(
        EngineOptions(
            bidirectional=False, decode_ttl_s=7, recompute_threshold=3, failure_policy="recompute", lease_s=11
        )
    )
    assert config["kv_role"] == "kv_producer"
    assert config["kv_load_failure_policy"] == "recompute"
    extra = config["kv_connector_extra_config"]
    assert extra.pop("kvdiag_event_log") == "logs/p-events.jsonl"
    assert extra == {
        "bidirectional_kv_xfer": False,
        "decoder_kv_blocks_ttl": 7,
        "kv_recompute_threshold": 3,
        "kv_lease_duration": 11,
    }


@pytest.mark.parametrize(
    ("connector", "name", "module"),
    [("kvdiag", "KvdiagNixlConnector", "kvdiag.connector"), ("stock", "NixlConnector", None)],
)
def test_the_connector_can_be_ours_or_stock(connector: engine.Connector, name: str, module: str | None) -> None:
    config = transfer_config(EngineOptions(connector=connector))
    assert (config["kv_connector"], config.get("kv_connector_module_path")) == (name, module)


def test_no_connector_means_no_transfer_config() -> None:
    service = engine_service("d", "decode", Path("m"), Path("logs"), EngineOptions(connector=None))
    assert "--kv-transfer-config" not in service.command


@pytest.mark.parametrize(
    ("caching", "flag"), [(True, "--enable-prefix-caching"), (False, "--no-enable-prefix-caching")]
)
def test_prefix_caching_is_set_per_engine(*, caching: bool, flag: str) -> None:
    assert flag in engine_service("p", "prefill", Path("m"), Path("l"), EngineOptions(prefix_caching=caching)).command


def test_a_missing_vllm_names_the_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingStackError, match="make setup"):
        engine.require_vllm()
