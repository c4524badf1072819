"""The engine configurations that scenarios ask for by name: a start costs up to a minute, so they are few and shared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kvdiag.localstack import EngineOptions

if TYPE_CHECKING:
    from kvdiag.events import Role

TTL_S: Final = 20
"""Decode keeps blocks this long; prefill declines reads 5 s before that."""
UNPLUGGED_HOST: Final = "10.77.0.1"
"""Address of a side channel that can be taken away, on the loopback interface of the run's own network namespace."""
SMALL_CACHE_BLOCKS: Final = 66
"""Blocks of 128 tokens: one request of the greatest length, and hardly more."""

_COMMON: Final = EngineOptions(decode_ttl_s=TTL_S)
# As in production with a small prefill cache: what is reused has to come from decode.
_COLD: Final = replace(_COMMON, prefix_caching=False)
_SMALL: Final = replace(_COMMON, arguments=("--num-gpu-blocks-override", str(SMALL_CACHE_BLOCKS)))
_STOCK: Final = replace(_COMMON, connector="stock", environment={"VLLM_PLUGINS": ""})
_STOCK_COLD: Final = replace(_STOCK, prefix_caching=False)
_TCP: Final = {"UCX_TLS": "tcp,self"}
# Long enough that a transfer tells of the network.
_LONG: Final = 16384


@dataclass(frozen=True)
class Engine:
    """One configuration."""

    role: Role
    options: EngineOptions


ENGINES: Final[dict[str, Engine]] = {
    "prefill": Engine("prefill", _COLD),
    "decode": Engine("decode", _COMMON),
    "prefill-off": Engine("prefill", replace(_COLD, bidirectional=False)),
    "decode-off": Engine("decode", replace(_COMMON, bidirectional=False)),
    "prefill-bare": Engine("prefill", replace(_COLD, connector=None)),
    "decode-mute": Engine("decode", replace(_COMMON, environment={"VLLM_PLUGINS": ""})),
    "prefill-narrow": Engine("prefill", replace(_COMMON, arguments=("--max-num-seqs", "1"))),
    "decode-narrow": Engine("decode", replace(_COMMON, arguments=("--max-num-seqs", "1"))),
    "decode-small": Engine("decode", _SMALL),
    "decode-small-off": Engine("decode", replace(_SMALL, bidirectional=False, prefix_caching=False)),
    "decode-other": Engine("decode", replace(_COMMON, arguments=("--dtype", "bfloat16"))),
    "prefill-disk-full": Engine("prefill", replace(_COLD, connector_config={"kvdiag_event_log": "/dev/full"})),
    "prefill-tcp": Engine("prefill", replace(_COLD, max_model_len=_LONG, environment=_TCP)),
    "decode-tcp": Engine(
        "decode",
        replace(_COMMON, max_model_len=_LONG, environment={**_TCP, "VLLM_NIXL_SIDE_CHANNEL_HOST": UNPLUGGED_HOST}),
    ),
    "stock-prefill": Engine("prefill", _STOCK_COLD),
    "stock-decode": Engine("decode", _STOCK),
    # Its handles outlive a restart, so that it is the restart that voids them.
    "stock-decode-patient": Engine("decode", replace(_STOCK, decode_ttl_s=480)),
    "stock-prefill-recompute": Engine("prefill", replace(_STOCK_COLD, failure_policy="recompute")),
    "stock-prefill-off": Engine("prefill", replace(_STOCK_COLD, bidirectional=False)),
    "stock-prefill-short-lease": Engine("prefill", replace(_STOCK_COLD, lease_s=5)),
}
