"""One vLLM engine of the local stack: its flags, environment and command line."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from kvdiag.errors import MissingStackError
from kvdiag.localstack.process import HOST, Service, free_port

if TYPE_CHECKING:
    from pathlib import Path

    from kvdiag.events import Role

MODEL_NAME: Final = "tiny"
Connector = Literal["kvdiag", "stock"]
_KV_ROLES: Final[dict[str, str]] = {"prefill": "kv_producer", "decode": "kv_consumer"}


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an experiment may vary on an engine. Defaults are vLLM's own where it has one."""

    connector: Connector | None = "kvdiag"
    """None starts the engine without --kv-transfer-config."""
    bidirectional: bool = True
    decode_ttl_s: int = 480
    recompute_threshold: int = 64
    failure_policy: Literal["fail", "recompute"] = "fail"
    prefix_caching: bool = True
    lease_s: int | None = None
    kv_cache_gib: int = 1
    max_model_len: int = 8192
    log_level: Literal["INFO", "DEBUG"] = "INFO"
    connector_config: dict[str, Any] = field(default_factory=dict)
    """More keys for kv_connector_extra_config."""
    arguments: tuple[str, ...] = ()
    """More arguments for the API server."""
    environment: dict[str, str] = field(default_factory=dict)


def require_vllm() -> None:
    """Raise MissingStackError where no vLLM is installed."""
    if importlib.util.find_spec("vllm") is None:
        raise MissingStackError


def engine_service(name: str, role: Role, model: Path, folder: Path, options: EngineOptions) -> Service:
    """Return the engine as a service whose logs lie in `folder`."""
    port = free_port()
    return Service(
        name=name,
        command=[sys.executable, "-m", "kvdiag.localstack.server", *_arguments(model, port, options)]
        + (_kv_arguments(role, folder / f"{name}-events.jsonl", options) if options.connector else []),
        log=folder / f"{name}.log",
        port=port,
        environment={**_environment(options), **options.environment},
    )


def _arguments(model: Path, port: int, options: EngineOptions) -> list[str]:
    caching = "--enable-prefix-caching" if options.prefix_caching else "--no-enable-prefix-caching"
    return [
        *("--model", str(model), "--served-model-name", MODEL_NAME, "--host", HOST, "--port", str(port)),
        *("--dtype", "float32", "--enforce-eager", "--max-model-len", str(options.max_model_len), caching),
        *("--distributed-executor-backend", "uni"),
        *options.arguments,
    ]


def _kv_arguments(role: Role, event_log: Path, options: EngineOptions) -> list[str]:
    extra: dict[str, Any] = {
        "bidirectional_kv_xfer": options.bidirectional,
        "decoder_kv_blocks_ttl": options.decode_ttl_s,
        "kv_recompute_threshold": options.recompute_threshold,
    }
    if options.lease_s is not None:
        extra["kv_lease_duration"] = options.lease_s
    config: dict[str, Any] = {
        "kv_connector": "NixlConnector",
        "kv_role": _KV_ROLES[role],
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": options.failure_policy,
    }
    if options.connector == "kvdiag":
        config |= {"kv_connector": "KvdiagNixlConnector", "kv_connector_module_path": "kvdiag.connector"}
        extra["kvdiag_event_log"] = str(event_log)
    config["kv_connector_extra_config"] = extra | options.connector_config
    return ["--kv-transfer-config", json.dumps(config)]


def _environment(options: EngineOptions) -> dict[str, str]:
    return {
        "VLLM_TARGET_DEVICE": "cpu",
        # With "uni" above, the worker lives in the engine core, as with one GPU. Between two processes vLLM spins on
        # shared memory: on a busy machine a turn of 24 tokens was seen to take 20 s instead of 0.3 s.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(options.kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": options.log_level,
        "UCX_TLS": "tcp,sm,self",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": HOST,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
    }
