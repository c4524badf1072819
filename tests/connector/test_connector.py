"""The facade around upstream's own scheduler: what upstream claims, queues and returns once our side has had its say."""

from __future__ import annotations

import copy
import os
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kvdiag.errors import InputError

from .conftest import BLOCK, HELD, FakeRequest, handle_params

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore")  # importing vLLM and torch warns in many ways

GOES_ON = [*HELD, 1, 2, 3]
EDITED = [*HELD[:500], 0, *HELD[501:], 1]


@pytest.fixture(scope="module")
def connect() -> Callable[..., Any]:
    """Return how to make a scheduler's connector with these extra settings."""
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    import torch
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    from kvdiag.connector import KvdiagNixlConnector

    def make(kv_role: str = "kv_producer", **extra: Any) -> Any:  # noqa: ANN401 - vLLM's
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
        cache = KVCacheConfig(num_blocks=100, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        transfer = KVTransferConfig(
            kv_connector="KvdiagNixlConnector",
            kv_connector_module_path="kvdiag.connector",
            kv_role=kv_role,
            kv_connector_extra_config={"bidirectional_kv_xfer": True} | extra,
        )
        parallel = {
            f"{kind}_parallel_size": 1 for kind in ("tensor", "pipeline", "prefill_context", "decode_context")
        } | {"data_parallel_index": 0}
        config = SimpleNamespace(
            kv_transfer_config=transfer,
            parallel_config=SimpleNamespace(**parallel),
            cache_config=SimpleNamespace(block_size=BLOCK, mamba_cache_mode="none"),
            scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
            observability_config=SimpleNamespace(otlp_traces_endpoint=None),
            num_prefill_lookahead_tokens=0,
        )
        return KvdiagNixlConnector(config, KVConnectorRole.SCHEDULER, cache)

    return make


def test_a_push_connector_is_refused_with_the_reason() -> None:
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    push = KVTransferConfig(
        kv_connector="NixlPushConnector", kv_connector_module_path="kvdiag.connector", kv_role="kv_producer"
    )
    with pytest.raises(InputError, match="no way back to prefill"):
        KVConnectorFactory.get_connector_class(push)


def test_a_member_of_a_multi_connector_reads_back_as_it_does_alone(connect: Callable[..., Any]) -> None:
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

    alone = connect()
    config = copy.copy(alone._vllm_config)
    own = {
        "kv_connector": "KvdiagNixlConnector",
        "kv_connector_module_path": "kvdiag.connector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"bidirectional_kv_xfer": True},
    }
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="MultiConnector", kv_role="kv_producer", kv_connector_extra_config={"connectors": [own]}
    )
    multi = MultiConnector(config, KVConnectorRole.SCHEDULER, alone._kv_cache_config)
    claimed, together = schedule(multi, request(fresh(), EDITED))
    (meta,) = together.metadata
    assert claimed == 496
    assert meta.reqs_to_recv["turn"].remote.block_ids == [list(range(31))]
    assert meta.kvdiag_notes == {"turn": "read"}


class FakeBlocks:
    """The blocks that vLLM's scheduler allocated: none of them hashed yet."""

    def __init__(self, tokens: int) -> None:
        self._ids = list(range(100, 100 + -(-tokens // BLOCK)))
        self.blocks = ([SimpleNamespace(block_hash=None, is_null=False) for _ in self._ids],)

    def get_unhashed_block_ids_all_groups(self) -> tuple[list[int]]:
        return (self._ids,)


def request(params: Any, tokens: list[int], name: str = "turn") -> Any:  # noqa: ANN401 - stands in for vLLM's Request
    asked: Any = FakeRequest(name, params, tokens)
    asked.arrival_time = time.time()
    asked.lora_request, asked.cache_salt, asked.mm_features = None, None, []
    return asked


def schedule(connector: Any, asked: Any, local: int = 0) -> tuple[int, Any]:  # noqa: ANN401 - vLLM's
    """Run a request through the scheduler's hooks; return the tokens claimed and the metadata for the workers."""
    connector.on_new_request(asked)
    claimed, _ = connector.get_num_new_matched_tokens(asked, local)
    connector.update_state_after_alloc(asked, FakeBlocks(claimed), claimed)
    return claimed, connector.build_connector_meta(SimpleNamespace())


def fresh(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any field
    """Return a handle that is alive by every clock."""
    return handle_params(kvdiag={"issued_at": None, "age_s": 0.0} | changes.pop("kvdiag", {}), **changes)


def test_upstream_reads_everything_of_a_conversation_that_goes_on(connect: Callable[..., Any]) -> None:
    claimed, meta = schedule(connect(), request(fresh(), GOES_ON))
    read = meta.reqs_to_recv["turn"]
    assert claimed == 1000
    assert read.remote.block_ids == [list(range(63))]
    assert len(read.local_block_ids[0]) == 63
    assert meta.kvdiag_notes == {"turn": "read"}


def test_upstream_reads_only_the_common_blocks_of_an_edited_one(connect: Callable[..., Any]) -> None:
    claimed, meta = schedule(connect(), request(fresh(), EDITED))
    assert claimed == 496
    assert meta.reqs_to_recv["turn"].remote.block_ids == [list(range(31))]
    assert len(meta.reqs_to_recv["turn"].local_block_ids[0]) == 31


def test_upstream_only_notifies_the_holder_of_unrelated_tokens(connect: Callable[..., Any]) -> None:
    connector = connect()
    known = [["handshake", "engine-d", 0.1, None, None]]  # vLLM 0.29 notifies no engine that it has not met
    connector._scheduler_side.absorb(known)
    claimed, meta = schedule(connector, request(fresh(), [0] * 1100))
    assert claimed == 0
    assert meta.reqs_to_recv["turn"].local_block_ids == ()
    assert meta.kvdiag_notes == {"turn": "notified"}


@pytest.mark.parametrize(
    "params",
    [
        fresh(remote_port="http"),
        fresh(remote_block_ids=[[-1]]),
        fresh(remote_block_ids="1"),
        fresh(_remote_blocks_processed=True, remote_host=None),
        fresh(kvdiag={"age_s": 1e9}),
        {"do_remote_prefill": True},
        {"do_remote_prefill": True, "remote_block_ids": [["a"]], "remote_engine_id": 1},
        {"do_remote_decode": True, "do_remote_prefill": True},
        ["not", "an", "object"],
    ],
)
def test_upstream_claims_and_queues_nothing_that_it_could_not_read(connect: Callable[..., Any], params: Any) -> None:  # noqa: ANN401
    claimed, meta = schedule(connect(), request(params, GOES_ON))
    assert (claimed, meta.reqs_to_recv) == (0, {})


def test_upstream_does_not_claim_without_the_feature(connect: Callable[..., Any]) -> None:
    claimed, meta = schedule(connect(bidirectional_kv_xfer=False), request(fresh(), GOES_ON))
    assert (claimed, meta.reqs_to_recv) == (0, {})


@pytest.mark.parametrize(
    ("kv_role", "extra", "policy"),
    [
        ("kv_producer", {}, "recompute"),
        ("kv_producer", {"kvdiag_recompute_failed_reads": False}, "fail"),
        ("kv_consumer", {}, "fail"),
    ],
)
def test_the_scheduler_finds_the_policy_that_takes_effect(
    connect: Callable[..., Any], kv_role: str, extra: dict[str, Any], policy: str
) -> None:
    connector = connect(kv_role, **extra)
    assert connector._vllm_config.kv_transfer_config.kv_load_failure_policy == policy


def test_vllms_block_pool_reaches_the_quarantine(connect: Callable[..., Any]) -> None:
    from vllm.v1.core.block_pool import BlockPool

    pool = BlockPool(num_gpu_blocks=4, enable_caching=False, hash_block_size=BLOCK)
    free = pool.get_num_free_blocks()
    blocks = pool.get_new_blocks(2)
    connector = connect()
    connector.bind_gpu_block_pool(pool)
    quarantine = connector._scheduler_side.quarantine
    quarantine.hold("turn", (blocks,))
    pool.free_blocks(blocks)
    assert pool.get_num_free_blocks() == free - 2
    quarantine.settle("turn")
    assert pool.get_num_free_blocks() == free


def test_upstream_does_not_claim_again_after_a_failed_read(connect: Callable[..., Any]) -> None:
    connector, asked = connect(), request(fresh(), GOES_ON)
    schedule(connector, asked)
    assert connector.get_num_new_matched_tokens(asked, 0) == (0, False)


def test_an_exception_in_our_code_reads_nothing_and_is_counted(
    connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    connector = connect()

    def broken(*_arguments: object) -> None:
        raise ZeroDivisionError

    for hook in ("admit", "offer", "matched", "admitted", "finished", "absorb"):
        monkeypatch.setattr(connector._scheduler_side, hook, broken)
    claimed, meta = schedule(connector, request(fresh(), GOES_ON))
    assert (claimed, meta.reqs_to_recv) == (0, {})
    stats = connector.get_kv_connector_stats()
    assert [item[0] for item in stats.data["kvdiag"] if item[0] != "cache"] == ["error"] * 4


@pytest.mark.parametrize(
    ("kv_role", "params"), [("kv_producer", {"do_remote_decode": True}), ("kv_consumer", {"x": 1})]
)
def test_what_goes_back_carries_the_context(connect: Callable[..., Any], kv_role: str, params: dict[str, Any]) -> None:
    from vllm.v1.request import RequestStatus

    connector, asked = connect(kv_role), request(params, HELD)
    schedule(connector, asked)
    asked.status, asked.num_computed_tokens, asked.all_token_ids = RequestStatus.FINISHED_STOPPED, 990, HELD
    held, returned = connector.request_finished_all_groups(asked, (list(range(62)),))
    assert held
    assert returned["remote_request_id"] == "turn"
    assert ("prefix" in returned["kvdiag"]) is (kv_role == "kv_consumer")
    assert ("cause" in returned["kvdiag"]) is (kv_role == "kv_producer")


def test_what_the_workers_report_is_absorbed(connect: Callable[..., Any]) -> None:
    from kvdiag.connector import upstream

    connector = connect()
    schedule(connector, request(fresh(), GOES_ON))
    connector.get_kv_connector_stats()
    stats = upstream.stats_with(None, [["moved", "turn", 7, 0.1, 0.1, 1]])
    connector.update_connector_output(
        SimpleNamespace(kv_connector_stats=stats, finished_recving={"turn"}, finished_sending=None)
    )
    ((kind, event),) = connector.get_kv_connector_stats().data["kvdiag"]
    assert (kind, event["kind"], event["bytes"]) == ("event", "transfer", 7)
    assert connector.get_kv_connector_stats() is None
