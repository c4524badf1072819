"""Whatever stands in `kv_transfer_params`, reading it gives a handle or a flaw."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.connector.handle import MAX_BLOCKS, Flaw, Handle, hand_off, read_back

GOOD: dict[str, Any] = {
    "do_remote_decode": True,
    "remote_block_ids": [[1, 2, 3]],
    "remote_engine_id": "engine",
    "remote_request_id": "chatcmpl-a-12345678",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "remote_num_tokens": 40,
    "tp_size": 1,
    "remote_blocks_expiry_time": 12.5,
}


def test_a_complete_handle_is_read() -> None:
    handle = read_back(GOOD)
    assert isinstance(handle, Handle)
    assert (handle.tokens, handle.blocks, handle.address, handle.context) == (40, [[1, 2, 3]], "127.0.0.1:5600", None)


def test_a_request_without_blocks_brings_none() -> None:
    assert read_back({"do_remote_decode": True}) is None
    assert read_back(GOOD | {"remote_block_ids": []}) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("remote_engine_id", None),
        ("remote_engine_id", 7),
        ("remote_request_id", ""),
        ("remote_request_id", "x" * 10_000),
        ("remote_host", ["h"]),
        ("remote_port", "5600"),
        ("remote_port", -1),
        ("remote_port", True),
        ("remote_port", 1 << 20),
        ("remote_block_ids", "123"),
        ("remote_block_ids", [1, 2, 3]),
        ("remote_block_ids", [["1"]]),
        ("remote_block_ids", [[-1]]),
        ("remote_block_ids", [[1.0]]),
        ("remote_block_ids", [[1, 1.5]]),
        ("remote_block_ids", [[1, "2"]]),
        ("remote_block_ids", [[1 << 32]]),
        ("remote_block_ids", [[1], 2]),
        ("remote_block_ids", [[True]]),
        ("remote_block_ids", [[]]),
        ("remote_block_ids", [[1]] * 100),
        ("remote_block_ids", [[0] * (MAX_BLOCKS + 1)]),
        ("remote_block_ids", {"0": [1]}),
        ("remote_num_tokens", -5),
        ("remote_num_tokens", "40"),
        ("remote_num_tokens", 4.5),
        ("remote_num_tokens", 1 << 40),
        ("tp_size", 0),
        ("tp_size", "2"),
        ("dcp_size", None),
        ("pp_size", [1]),
        ("remote_blocks_expiry_time", "soon"),
        ("remote_blocks_expiry_time", float("nan")),
    ],
)
def test_a_field_that_upstream_cannot_work_with_is_named(field: str, value: object) -> None:
    for read in (read_back, hand_off):
        flaw = read(GOOD | {field: value})
        assert isinstance(flaw, Flaw)
        assert field in flaw.reason
        assert not flaw.releasable


@pytest.mark.parametrize("missing", [None, 0])
def test_a_handle_without_a_token_count_can_still_be_released(missing: object) -> None:
    assert read_back(GOOD | {"remote_num_tokens": missing}) == Flaw("remote_num_tokens", releasable=True)


def test_prefills_handle_needs_no_token_count() -> None:
    params = {key: value for key, value in GOOD.items() if key != "remote_num_tokens"}
    assert isinstance(hand_off(params), Handle)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*GOOD, "kvdiag", "dcp_size", "pp_size"]), anything), st.booleans())
def test_any_params_give_a_handle_or_a_flaw(changes: dict[str, object], whole: bool) -> None:  # noqa: FBT001
    params = (GOOD | changes) if whole else changes
    assert isinstance(read_back(params), Handle | Flaw | None)
    assert isinstance(hand_off(params), Handle | Flaw)
