"""Messages about reading and losing KV blocks: expiry, failed loads, peers."""

from __future__ import annotations

from typing import Final

from kvdiag.diagnosis.patterns.base import ID, PEER, RAISED, TRACE, pattern

EXPIRY: Final = (
    pattern(
        "declined",
        "Declining expired remote read for",
        rf"Declining expired remote read for {ID} from engine {PEER}\.?\s*$",
        "Declining expired remote read for chatcmpl-a-0b1dc90a from engine 1f44d83f.",
        "vLLM 0.27.1+ nixl/pull_worker.py",
    ),
    pattern(
        "released",
        "Releasing expired KV blocks for request",
        rf"Releasing expired KV blocks for request {ID} which were retrieved by (?P<readers>\d+) "
        r"(?:(?P<old>decode worker)\(s\) within (?P<ttl>\d+) seconds|remote worker\(s\) before lease expired)",
        "Releasing expired KV blocks for request chatcmpl-a-19ce6ad2 which were retrieved by 0 remote worker(s) before lease expired.",
        "vLLM 0.10+ nixl/base_worker.py",
    ),
    pattern(
        "read_after_release",
        "Potentially invalid KV blocks for",
        rf"Potentially invalid KV blocks for unrecognized request {ID} were retrieved by",
        "Potentially invalid KV blocks for unrecognized request chatcmpl-a-708d01a8 were retrieved by a decode worker. They may have expired.",
        "vLLM 0.10+ nixl/pull_worker.py",
    ),
    pattern(
        "read_after_release",
        "notif (may have expired)",
        rf"Unrecognized request {ID} notif \(may have expired\)",
        "Unrecognized request chatcmpl-a-708d01a8 notif (may have expired).",
        "vLLM push connector",
    ),
    pattern(
        "push_timeout",
        "NixlPushConnector: registration for request",
        rf"NixlPushConnector: registration for request {ID} timed out after (?P<seconds>[\d.]+)s",
        "NixlPushConnector: registration for request chatcmpl-a-708d01a8 timed out after 30.0s without a push completion",
        "vLLM push connector",
    ),
)

FAILURE: Final = (
    pattern(
        "skipped",
        "Skipping KV post-processing for failed request",
        rf"Skipping KV post-processing for failed request {ID}\s*$",
        "Skipping KV post-processing for failed request chatcmpl-a-0b1dc90a",
        "vLLM nixl/base_worker.py",
    ),
    pattern(
        "load_failed",
        "due to KV load failure (failure_policy",
        r"Failing (?P<count>\d+) request\(s\) due to KV load failure \(failure_policy=(?P<policy>\w+), (?P<tokens>\d+) tokens "
        r"affected\)\. Request IDs: (?P<ids>.*)",
        "Failing 1 request(s) due to KV load failure (failure_policy=fail, 2608 tokens affected). Request IDs: {'chatcmpl-a-0b1dc90a'}",
        "vLLM v1/core/sched/scheduler.py",
    ),
    pattern(
        "load_recovered",
        "Recovered from KV load failure",
        r"Recovered from KV load failure: (?P<count>\d+) request\(s\) rescheduled \((?P<tokens>\d+) tokens affected\)",
        "Recovered from KV load failure: 1 request(s) rescheduled (92 tokens affected).",
        "vLLM v1/core/sched/scheduler.py",
    ),
    pattern(
        "nixl_failure",
        "NIXL transfer failure: ",
        r"NIXL transfer failure: (?P<type>\w+)(?P<note>[^|]*)\| Context: (?P<context>\{.*)",
        "NIXL transfer failure: transfer_failed | Context: {'failure_type': 'transfer_failed', 'request_id': 'chatcmpl-a-f355111f'}",
        "vLLM 2026+ (PR 32031) nixl/base_worker.py",
    ),
    pattern(
        "nixl_failure",
        "NIXL transfer setup/initiation failed for request",
        rf"NIXL transfer setup/initiation failed for request {ID}\. Marking",
        "NIXL transfer setup/initiation failed for request chatcmpl-a. Marking blocks as invalid.",
        "vLLM before 2026 nixl_connector.py",
        type="transfer_setup_failed",
    ),
    pattern(
        "nixl_failure",
        "NIXL transfer failed for request",
        rf"NIXL transfer failed for request {ID}[ :.,]",
        "NIXL transfer failed for request chatcmpl-a with state ERR. Marking blocks as invalid.",
        "vLLM before 2026 nixl_connector.py",
        type="transfer_failed",
    ),
    pattern(
        "nixl_failure",
        "NIXL send_notif failed for request",
        rf"NIXL send_notif failed for request {ID}: ",
        "NIXL send_notif failed for request chatcmpl-a: NIXL_ERR_REMOTE_DISCONNECT",
        "vLLM before 2026 nixl_connector.py",
        type="notification_failed",
    ),
    pattern(
        "nixl_failure",
        "Handshake failed for request",
        rf"Handshake failed for request {ID}(?:, marking|\.|$|\s)",
        "Handshake failed for request chatcmpl-a, marking blocks as invalid",
        "vLLM before 2026 nixl_connector.py",
        type="handshake_failed",
    ),
    pattern(
        "nixl_failure",
        "Handshake with ",
        rf"Handshake with {PEER} failed",
        "Handshake with 1f44d83f-b329-433c-90fc-ce825e1a9077 failed",
        "vLLM before 2026 nixl_connector.py",
        type="handshake_setup_failed",
    ),
)

PEERS: Final = (
    pattern(
        "engine_id_mismatch",
        "NIXL agent engine ID mismatch",
        RAISED
        + r"RuntimeError: Remote NIXL agent engine ID mismatch\. Expected (?P<expected>[\w-]+), ?received (?P<received>[\w-]+)",
        "RuntimeError: Remote NIXL agent engine ID mismatch. Expected 46126a31-1,received 96b1c4ff-2.",
        "vLLM nixl/base_worker.py, vllm#27083",
        TRACE,
    ),
    pattern(
        "incompatible",
        "NIXL compatibility hash mismatch",
        RAISED + r"RuntimeError: NIXL compatibility hash mismatch",
        "RuntimeError: NIXL compatibility hash mismatch. Local: ab, Remote: cd. Prefill and decode instances",
        "vLLM 0.13+ (PR 29503)",
        TRACE,
    ),
    pattern(
        "incompatible",
        "Failed to decode Nixl",
        RAISED + r"RuntimeError: Failed to decode Nixl(?:HandshakePayload|AgentMetadata)\b",
        "RuntimeError: Failed to decode NixlHandshakePayload. Error: x",
        "vLLM nixl/base_worker.py",
        TRACE,
    ),
    pattern(
        "incompatible",
        "is not divisible",
        RAISED + r"AssertionError: Local block size \d+ is not divisible",
        "AssertionError: Local block size 16 is not divisible by remote block size 32 or vice versa.",
        "vllm#42895",
        TRACE,
    ),
    pattern(
        "unsupported",
        "AssertionError",
        RAISED + r"AssertionError\b",
        "AssertionError: Remote advertised no region_members",
        "vLLM nixl/base_worker.py",
        TRACE,
    ),
    pattern(
        "unsupported",
        "NotImplementedError",
        RAISED + r"NotImplementedError\b",
        "NotImplementedError: Replicated PCP cannot be paired with a DCP-sharded NIXL peer.",
        "vLLM nixl/base_worker.py",
        TRACE,
    ),
    pattern(
        "unsupported",
        "RuntimeError: Heterogeneous TP",
        RAISED + r"RuntimeError: Heterogeneous TP",
        "RuntimeError: Heterogeneous TP expects same kv_cache_layout (local LBNHC, remote LBHNC).",
        "vLLM nixl/base_worker.py",
        TRACE,
    ),
    pattern(
        "unreachable",
        "ConnectionRefusedError",
        RAISED + r"ConnectionRefusedError\b",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "Python",
        TRACE,
    ),
    pattern(
        "unreachable",
        "zmq.error.Again",
        r"(?:.*\n)?zmq\.error\.Again",
        "zmq.error.Again: Resource temporarily unavailable",
        "the side channel's 5 s time-out",
        TRACE,
    ),
    pattern(
        "status_error",
        "NIXL_ERR_",
        RAISED + r"[\w.]*Error: (?P<status>NIXL_ERR_[A-Z_]+)",
        "nixl_cu13._bindings.nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT",
        "NIXL bindings",
        TRACE,
    ),
    pattern(
        "engine_replaced",
        "Remote engine at ",
        rf"Remote engine at (?P<address>\S+) changed from (?P<old>[\w-]+) to {PEER}\.\s*$",
        "Remote engine at 198.51.100.34:5600 changed from a1298960-cd52 to b1298960-cd52.",
        "vLLM 0.31+ nixl/base_worker.py",
    ),
    pattern(
        "state_released",
        "Released NIXL state for",
        rf"Released NIXL state for replaced (?:or locally invalid )?remote engine {PEER}\.\s*$",
        "Released NIXL state for replaced or locally invalid remote engine a1298960-cd52.",
        "vLLM 0.31+",
    ),
    pattern(
        "metadata_lost",
        "Local NIXL metadata for remote engine",
        rf"Local NIXL metadata for remote engine {PEER} was invalidated",
        "Local NIXL metadata for remote engine a1298960-cd52 was invalidated; re-handshaking after reads drain.",
        "vLLM 0.32+",
    ),
    pattern(
        "handshake_time",
        "NIXL handshake: add agent took",
        r"NIXL handshake: add agent took: (?P<seconds>[\d.]+)",
        "NIXL handshake: add agent took: 2.5 (seconds)",
        "vLLM DEBUG",
    ),
)
