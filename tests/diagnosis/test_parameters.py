"""Reprs in log lines are read field by field, also when they were cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvdiag.diagnosis.parameters import EngineConfig, TransferParams, pick, read_config, read_params

_ARGUMENTS = (
    "{'port': 8200, 'kv_transfer_config': KVTransferConfig(kv_connector='NixlConnector', engine_id='7d2c', "
    "kv_role='kv_consumer', kv_connector_extra_config={'kv_recompute_threshold': 0, 'bidirectional_kv_xfer': True, "
    "'decoder_kv_blocks_ttl': 480}, kv_load_failure_policy='fail')}"
)
_HANDLE = (
    "{'do_remote_prefill': False, 'do_remote_decode': True, 'remote_block_ids': [[3, 4]], 'remote_engine_id': 'e', "
    "'remote_request_id': 'chatcmpl-a-11bc8c52', 'remote_host': '198.51.100.34', 'remote_port': 5600, 'remote_num_tokens': 2356}"
)


def test_start_up_arguments_tell_the_transfer_settings() -> None:
    assert read_config(_ARGUMENTS) == EngineConfig(
        connector="NixlConnector",
        engine_id="7d2c",
        role="decode",
        bidirectional=True,
        ttl_s=480,
        threshold=0,
        failure_policy="fail",
        port=8200,
    )


def test_arguments_without_a_connector_say_so() -> None:
    config = read_config("{'port': 8000, 'model': 'x'}")

    assert (config.connector, config.role, config.bidirectional) == (None, None, False)


def test_a_whole_handle_can_be_read() -> None:
    assert read_params(_HANDLE) == TransferParams("prefill", "chatcmpl-a-11bc8c52", "usable", (), 2356)


def test_a_handle_without_a_field_is_incomplete() -> None:
    params = read_params(_HANDLE.replace(", 'remote_num_tokens': 2356", ""))

    assert (params.state, params.missing) == ("incomplete", ("remote_num_tokens",))


def test_a_cut_handle_is_not_called_incomplete() -> None:
    assert read_params(_HANDLE[: _HANDLE.index("'remote_port'")]).state == "usable"


def test_a_first_turn_brings_no_handle() -> None:
    text = "{'do_remote_decode': True, 'do_remote_prefill': False, 'remote_engine_id': None, 'remote_block_ids': None}"

    assert read_params(text) == TransferParams("prefill", None, "none")


def test_a_hand_off_is_decodes() -> None:
    assert read_params("{'do_remote_prefill': True, 'do_remote_decode': False}").role == "decode"


@given(st.text(), st.sampled_from(["engine_id", "kv_role", "remote_port"]))
def test_any_text_can_be_picked_from(text: str, name: str) -> None:
    assert pick(text, name) is None or name in text
