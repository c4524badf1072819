"""What kvdiag relies on in vLLM beside its public interface, as data: names, parameters, attributes.

Checked against the running vLLM when an engine starts (`kvdiag.connector.upstream`), and against the sources of
versions that cannot run on a machine (`scripts/compat.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_NIXL: Final = "vllm.distributed.kv_transfer.kv_connector.v1.nixl."
_BASE: Final = "vllm.distributed.kv_transfer.kv_connector.v1.base"
_OPENAI: Final = "vllm.entrypoints.openai."


class Method(NamedTuple):
    """One method: where it is defined, and its leading parameters after self or cls."""

    module: str
    owner: str
    name: str
    parameters: tuple[str, ...]

    def __str__(self) -> str:
        """Return how it is called."""
        return f"{self.owner}.{self.name}({', '.join(self.parameters)})"


def _methods(module: str, owner: str, methods: dict[str, str]) -> tuple[Method, ...]:
    return tuple(Method(module, owner, name, tuple(parameters.split())) for name, parameters in methods.items())


CONNECTOR: Final = (
    *_methods(
        _NIXL + "connector",
        "NixlBaseConnector",
        {
            "__init__": "vllm_config role kv_cache_config",
            "on_new_request": "request",
            "get_num_new_matched_tokens": "request num_computed_tokens",
            "update_state_after_alloc": "request blocks num_external_tokens",
            "build_connector_meta": "scheduler_output",
            "update_connector_output": "connector_output",
            "request_finished": "request block_ids",
            "request_finished_all_groups": "request block_ids",
            "get_finished": "finished_req_ids",
            "get_kv_connector_stats": "",
            "build_kv_connector_stats": "data",
            "build_prom_metrics": "vllm_config metric_types labelnames per_engine_labelvalues",
        },
    ),
    *_methods(_NIXL + "connector", "NixlPullConnector", {"start_load_kv": "forward_context"}),
    *_methods(_BASE, "KVConnectorBase_V1", {"bind_gpu_block_pool": "gpu_block_pool"}),
    *_methods("vllm.v1.core.block_pool", "BlockPool", {"touch": "blocks", "free_blocks": "ordered_blocks"}),
    *_methods(
        _NIXL + "pull_worker",
        "NixlPullConnectorWorker",
        {"_read_blocks_for_req": "req_id meta", "_is_turn2_read_expired": "meta", "_get_new_notifs": ""},
    ),
    *_methods(
        _NIXL + "base_worker",
        "NixlBaseConnectorWorker",
        {
            "_handle_failed_transfer": "req_id handle",
            "_nixl_handshake": "host port remote_tp_size expected_engine_id",
        },
    ),
    *_methods(_NIXL + "stats", "NixlKVConnectorStats", {"reset": "", "is_empty": "", "aggregate": "other"}),
    *_methods(_NIXL + "stats", "NixlPromMetrics", {"observe": "transfer_stats_data engine_idx"}),
)
STREAMING: Final = (
    *_methods(
        _OPENAI + "chat_completion.serving",
        "OpenAIServingChat",
        {"chat_completion_stream_generator": "request result_generator"},
    ),
    *_methods(
        _OPENAI + "completion.serving",
        "OpenAIServingCompletion",
        {"completion_stream_generator": "request engine_inputs result_generator"},
    ),
)
WORKER_STATE: Final = (
    "nixl_wrapper",
    "tp_rank",
    "use_host_buffer",
    "_is_hma_required",
    "_recving_metadata",
    "_recving_transfers",
    "_reqs_to_process",
    "_reqs_to_send",
)
"""Attributes of NixlBaseConnectorWorker that are read."""
SCHEDULER_STATE: Final = ("use_host_buffer", "is_bidirectional_kv_xfer_enabled")
"""Attributes of NixlBaseConnectorScheduler that are read."""


def missing(methods: tuple[Method, ...], parameters_of: Callable[[Method], tuple[str, ...] | None]) -> list[str]:
    """Return the methods that are not there, or not with these parameters; `parameters_of` gives None for the former."""
    lacking = []
    for method in methods:
        found = parameters_of(method)
        if found is None or found[: len(method.parameters)] != method.parameters:
            lacking.append(str(method))
    return lacking
