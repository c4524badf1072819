"""What vLLM's own scheduler makes of reads that fail or stall, with our connector in it and the worker's reports made up."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from kvdiag.localstack.model import ensure_model
from kvdiag.localstack.stack import model_cache

from .conftest import BLOCK, HELD, handle_params

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore")  # importing vLLM and torch warns in many ways

PROMPT = [*HELD, 1, 2, 3]
BLOCKS = 200
STALLED = [["stalled", "turn"], ["failed", "turn", "transfer_failed", "stalled", "engine-d"]]
FAILED = [["failed", "turn", "transfer_failed", None, "engine-d"]]


@pytest.fixture(scope="module")
def schedule() -> Callable[..., Any]:
    """Return how to make a scheduler for a prefill engine whose connector has these extra settings."""
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    import torch
    from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    model = str(ensure_model(model_cache()))
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    cache = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])

    def make(**extra: Any) -> Any:  # noqa: ANN401 - vLLM's
        config = VllmConfig(
            model_config=ModelConfig(model=model, dtype="float32", max_model_len=4096),
            scheduler_config=SchedulerConfig(max_num_batched_tokens=8192, max_model_len=4096, is_encoder_decoder=False),
            cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=False),
            kv_transfer_config=KVTransferConfig(
                kv_connector="KvdiagNixlConnector",
                kv_connector_module_path="kvdiag.connector",
                kv_role="kv_producer",
                kv_connector_extra_config={"bidirectional_kv_xfer": True} | extra,
            ),
            device_config=DeviceConfig("cpu"),
        )
        config.cache_config.num_gpu_blocks = BLOCKS
        manager = StructuredOutputManager(config)
        return Scheduler(vllm_config=config, kv_cache_config=cache, structured_output_manager=manager, block_size=BLOCK)

    return make


class Engine:
    """One scheduler with one request that waits for its read."""

    def __init__(self, scheduler: Any) -> None:  # noqa: ANN401 - vLLM's
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        self.scheduler = scheduler
        self.pool = scheduler.kv_cache_manager.block_pool
        self.all_free = self.pool.get_num_free_blocks()
        params = handle_params(kvdiag={"issued_at": None, "age_s": 0.0})
        sampling = SamplingParams(max_tokens=8, extra_args={"kv_transfer_params": params})
        self.request = Request("turn", list(PROMPT), sampling, None)
        scheduler.add_request(self.request)
        self.step = scheduler.schedule()
        assert self.request.num_computed_tokens == len(HELD)
        self.written = self.blocks()

    def blocks(self) -> set[int]:
        """Return the request's blocks."""
        (ids,) = self.scheduler.kv_cache_manager.get_block_ids("turn")
        return set(ids)

    def report(self, items: list[Any], *, failed: bool = True) -> Any:  # noqa: ANN401 - vLLM's
        """Hand on what the worker says, schedule again, and return what goes to the clients."""
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        from kvdiag.connector import upstream

        output = KVConnectorOutput(
            finished_recving={"turn"} if failed else None,
            invalid_block_ids=self.written if failed else set(),
            kv_connector_stats=upstream.stats_with(None, items),
        )
        ran = list(self.step.num_scheduled_tokens)
        run = ModelRunnerOutput(
            req_ids=ran,
            req_id_to_index={name: index for index, name in enumerate(ran)},
            sampled_token_ids=[[7] for _ in ran],
            kv_connector_output=output,
        )
        told = self.scheduler.update_from_output(self.step, run)
        self.step = self.scheduler.schedule()
        return told


def test_a_failed_read_is_computed_under_vllms_own_policy_to_fail(schedule: Callable[..., Any]) -> None:
    engine = Engine(schedule())
    engine.report(FAILED)
    assert engine.step.num_scheduled_tokens == {"turn": len(PROMPT)}


def test_a_stalled_read_is_computed_in_other_blocks_until_its_end(schedule: Callable[..., Any]) -> None:
    engine = Engine(schedule())
    engine.report(STALLED)
    assert engine.step.num_scheduled_tokens == {"turn": len(PROMPT)}
    assert not engine.written & engine.blocks()
    assert engine.pool.get_num_free_blocks() == engine.all_free - len(engine.written) - len(engine.blocks())

    engine.report([["settled", "turn"]], failed=False)
    assert engine.pool.get_num_free_blocks() == engine.all_free - len(engine.blocks())


@pytest.mark.parametrize("items", [FAILED, STALLED], ids=["failed", "stalled"])
def test_turned_off_vllms_policy_counts_and_the_request_ends_at_once(
    schedule: Callable[..., Any], items: list[Any]
) -> None:
    engine = Engine(schedule(kvdiag_recompute_failed_reads=False))
    told = engine.report(items)
    (output,) = told[0].outputs
    assert (output.request_id, str(output.finish_reason)) == ("turn", "error")
    assert engine.step.num_scheduled_tokens == {}


def test_a_stalled_read_of_an_aborted_request_keeps_its_blocks_until_its_end(schedule: Callable[..., Any]) -> None:
    from vllm.v1.request import RequestStatus

    engine = Engine(schedule())
    engine.scheduler.finish_requests("turn", RequestStatus.FINISHED_ABORTED)
    engine.report(STALLED)
    assert engine.pool.get_num_free_blocks() == engine.all_free - len(engine.written)
    engine.report([["settled", "turn"]], failed=False)
    assert engine.pool.get_num_free_blocks() == engine.all_free
