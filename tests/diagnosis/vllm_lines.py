"""Lines of stock vLLM that many tests write into their logs."""

from __future__ import annotations

from typing import Final

STARTED: Final = (
    "(APIServer pid=1) INFO 10-14 08:00:00 [f.py:1] non-default args: {{'kv_transfer_config': KVTransferConfig("
    "kv_connector='NixlConnector', engine_id='{engine}', kv_role='{role}', kv_connector_extra_config="
    "{{'bidirectional_kv_xfer': {on}}})}}"
)
"""To be filled with `engine`, `role` and `on`."""
PREFILL: Final = STARTED.format(engine="p", role="kv_producer", on=True)
DECODE: Final = STARTED.format(engine="d", role="kv_consumer", on=True)
BUSY: Final = (
    "(APIServer pid=1) INFO 10-14 09:00:{at} [f.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation "
    "throughput: 9.0 tokens/s, Running: 9 reqs, Waiting: {waiting} reqs, GPU KV cache usage: {usage}%"
)
"""To be filled with `at` (seconds), `waiting` and `usage`."""
