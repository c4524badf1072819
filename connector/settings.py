"""What an operator may set in `kv_connector_extra_config`, beside upstream's own keys."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvdiag.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvdiag.events import Role

_ROLES: dict[str, Role] = {"kv_producer": "prefill", "kv_consumer": "decode"}
KEYS: Final = {
    "kvdiag_event_log": "file for events (`kvdiag.kv/1`, JSONL), rotated at 64 MiB; none by default (or `KVDIAG_EVENT_LOG`)",
    "kvdiag_verify": "whether the prompt is compared with the tokens that decode holds; true by default",
    "kvdiag_otlp_metrics": "where kvdiag's own metrics are pushed to, beside vLLM's `/metrics`: `http://HOST:4318` or "
    "`grpc://HOST:4317`; nowhere by default",
    "kvdiag_peer_addresses": "whether metrics and events name the engine that was read from by `HOST:PORT` instead of its "
    "engine id; false by default",
    "kvdiag_read_timeout_s": "seconds after which a read that has not arrived is given up; 20 by default, 0 waits for ever",
    "kvdiag_recompute_failed_reads": "whether prefill computes what a failed read did not bring, whatever "
    "`kv_load_failure_policy` says; true by default",
    "kvdiag_traces": "whether spans go where vLLM's `--otlp-traces-endpoint` points; true by default",
}
"""What kvdiag reads from `kv_connector_extra_config`, and what each key does."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The connector's effective configuration."""

    role: Role | None
    """None for kv_both: each request says which it is."""
    engine_id: str
    bidirectional: bool
    decode_ttl_s: float
    recompute_threshold: int
    failure_policy: str
    """vLLM's, as it takes effect."""
    recomputes_failed_reads: bool
    """Overrule vLLM's policy: a read-back is an optimisation, so that it fails is no reason to fail the request."""
    read_timeout_s: float
    """0 waits for ever."""
    verify: bool
    """Compare the prompt with the tokens that decode holds before anything is read."""
    peer_addresses: bool
    """Name other engines by host and port, not by engine id."""
    event_log: Path | None
    traces_endpoint: str | None
    """Where vLLM itself sends traces to; None turns spans off."""
    metrics_endpoint: str | None = None
    """Where kvdiag's metrics are pushed to, beside vLLM's /metrics."""

    @classmethod
    def of(cls, vllm_config: Any) -> Settings:  # noqa: ANN401 - vLLM's class, not installed everywhere
        """Read vLLM's configuration. Raises InputError for a value of kvdiag's own that cannot be used."""
        kv_transfer_config = vllm_config.kv_transfer_config
        endpoint = vllm_config.observability_config.otlp_traces_endpoint
        extra: Mapping[str, Any] = kv_transfer_config.kv_connector_extra_config or {}
        _check_names(extra)
        role = _ROLES.get(kv_transfer_config.kv_role)
        recomputes = role == "prefill" and _switch(extra, "kvdiag_recompute_failed_reads")
        policy = str(getattr(kv_transfer_config, "kv_load_failure_policy", "fail"))
        return cls(
            role=role,
            engine_id=str(kv_transfer_config.engine_id),
            bidirectional=bool(extra.get("bidirectional_kv_xfer", False)),
            decode_ttl_s=float(extra.get("decoder_kv_blocks_ttl", 480)),
            recompute_threshold=int(extra.get("kv_recompute_threshold", 64)),
            failure_policy="recompute" if recomputes else policy,
            recomputes_failed_reads=recomputes,
            # Below the 30 s that the router gives a turn with a handle: it would ask again while the read is given up.
            read_timeout_s=_seconds(extra, "kvdiag_read_timeout_s", 20.0),
            verify=_switch(extra, "kvdiag_verify"),
            peer_addresses=_switch(extra, "kvdiag_peer_addresses", default=False),
            event_log=_path(extra),
            traces_endpoint=endpoint if _switch(extra, "kvdiag_traces") else None,
            metrics_endpoint=_text(extra, "kvdiag_otlp_metrics", "a URL such as http://HOST:4318"),
        )


def _check_names(extra: Mapping[str, Any]) -> None:
    """Refuse a key that nobody reads: its owner would believe that it does something."""
    for key in extra:
        if str(key).startswith("kvdiag_") and key not in KEYS:
            raise InputError(f"kv_connector_extra_config {key} is not a setting; known: {', '.join(KEYS)}")


def _switch(extra: Mapping[str, Any], key: str, *, default: bool = True) -> bool:
    value = extra.get(key, default)
    if not isinstance(value, bool):
        raise InputError(f"kv_connector_extra_config {key} is {value!r}; set it to true or false")
    return value


def _seconds(extra: Mapping[str, Any], key: str, default: float) -> float:
    value = extra.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InputError(f"kv_connector_extra_config {key} is {value!r}; set it to seconds, or to 0 for no limit")
    return float(value)


def _path(extra: Mapping[str, Any]) -> Path | None:
    value = _text(extra, "kvdiag_event_log", "the path of a file") or os.environ.get("KVDIAG_EVENT_LOG")
    return Path(value) if value else None


def _text(extra: Mapping[str, Any], key: str, what: str) -> str | None:
    value = extra.get(key)
    if value is not None and not isinstance(value, str):
        raise InputError(f"kv_connector_extra_config {key} is {value!r}; set it to {what}")
    return value or None
