"""Every message that the diagnosis reads, as data: how to find it fast, how to take it apart, a sample, its source.

`needle` is what the scanner looks for in raw bytes (so it holds no quote, no blank that JSON would escape and no
non-ASCII letter); `shape` is matched against the start of the message once its line has been taken apart, which is
what keeps model output that merely quotes a log line from being read as one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kvdiag.diagnosis.lines import Origin

_ENGINE: Final[frozenset[Origin]] = frozenset({"vllm"})
_ROUTER: Final[frozenset[Origin]] = frozenset({"proxy"})
_NATIVE: Final[frozenset[Origin]] = frozenset({"native"})
_ACCESS: Final[frozenset[Origin]] = frozenset({"access"})
_BARE: Final[frozenset[Origin]] = frozenset({"bare", "access"})
_TRACE: Final[frozenset[Origin]] = frozenset({"vllm", "bare"})
_JSON: Final[frozenset[Origin]] = frozenset({"json"})

# Request ids are the client's to choose (X-Request-Id), engine ids are uuids: both bounded here.
_ID: Final = r"(?P<id>[^\s,;'\"{}]{1,300}?)"
_PEER: Final = r"(?P<peer>[\w.:-]{1,120}?)"
# Last line of a traceback: alone on its line, or below the message in a JSON record's `exc_info`.
_RAISED: Final = r"(?:.*\n)?(?:[\w.]+\.)?"


# The end of uvicorn's access line, plain and coloured, as it stands in text and in JSON.
_ERROR_STATUS: Final = (
    *(f"HTTP/{version}{quote} {digit}" for version in ("1.1", "1.0") for quote in ('"', '\\"') for digit in "45"),
    *(
        f"{quote} {escape}[{colour}m{digit}"
        for quote, escape in (('"', "\x1b"), ('\\"', "\\u001b"))
        for colour, digit in (("31", "4"), ("91", "5"))
    ),
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """One message. Named groups of `shape` become the fact's data."""

    kind: str
    needle: str
    shape: re.Pattern[str]
    sample: str
    source: str
    origins: frozenset[Origin]
    find: str | None = None
    """What the scanner compiles instead of the literal `needle`: a regular expression over bytes, if it must be."""
    spellings: tuple[str, ...] = ()
    """Literals to look for instead of `needle`, where quotes and colours give one message several spellings.
    Literals alone keep the scanner at its fastest."""
    fixed: dict[str, str] = field(default_factory=dict)
    """Data that every match carries."""


def _pattern(
    kind: str,
    needle: str,
    shape: str,
    sample: str,
    source: str = "",
    origins: frozenset[Origin] = _ENGINE,
    find: str | None = None,
    spellings: tuple[str, ...] = (),
    **fixed: str,
) -> Pattern:
    return Pattern(kind, needle, re.compile(shape, re.DOTALL), sample, source, origins, find, spellings, fixed)


EXPIRY: Final = (
    _pattern(
        "declined",
        "Declining expired remote read for",
        rf"Declining expired remote read for {_ID} from engine {_PEER}\.?\s*$",
        "Declining expired remote read for chatcmpl-a-0b1dc90a from engine 1f44d83f.",
        "vLLM 0.27.1+ nixl/pull_worker.py",
    ),
    _pattern(
        "released",
        "Releasing expired KV blocks for request",
        rf"Releasing expired KV blocks for request {_ID} which were retrieved by (?P<readers>\d+) "
        r"(?:(?P<old>decode worker)\(s\) within (?P<ttl>\d+) seconds|remote worker\(s\) before lease expired)",
        "Releasing expired KV blocks for request chatcmpl-a-19ce6ad2 which were retrieved by 0 remote worker(s) before lease expired.",
        "vLLM 0.10+ nixl/base_worker.py",
    ),
    _pattern(
        "read_after_release",
        "Potentially invalid KV blocks for",
        rf"Potentially invalid KV blocks for unrecognized request {_ID} were retrieved by",
        "Potentially invalid KV blocks for unrecognized request chatcmpl-a-708d01a8 were retrieved by a decode worker. They may have expired.",
        "vLLM 0.10+ nixl/pull_worker.py",
    ),
    _pattern(
        "read_after_release",
        "notif (may have expired)",
        rf"Unrecognized request {_ID} notif \(may have expired\)",
        "Unrecognized request chatcmpl-a-708d01a8 notif (may have expired).",
        "vLLM push connector",
    ),
    _pattern(
        "push_timeout",
        "NixlPushConnector: registration for request",
        rf"NixlPushConnector: registration for request {_ID} timed out after (?P<seconds>[\d.]+)s",
        "NixlPushConnector: registration for request chatcmpl-a-708d01a8 timed out after 30.0s without a push completion",
        "vLLM push connector",
    ),
)

FAILURE: Final = (
    _pattern(
        "skipped",
        "Skipping KV post-processing for failed request",
        rf"Skipping KV post-processing for failed request {_ID}\s*$",
        "Skipping KV post-processing for failed request chatcmpl-a-0b1dc90a",
        "vLLM nixl/base_worker.py",
    ),
    _pattern(
        "load_failed",
        "due to KV load failure (failure_policy",
        r"Failing (?P<count>\d+) request\(s\) due to KV load failure \(failure_policy=(?P<policy>\w+), (?P<tokens>\d+) tokens "
        r"affected\)\. Request IDs: (?P<ids>.*)",
        "Failing 1 request(s) due to KV load failure (failure_policy=fail, 2608 tokens affected). Request IDs: {'chatcmpl-a-0b1dc90a'}",
        "vLLM v1/core/sched/scheduler.py",
    ),
    _pattern(
        "load_recovered",
        "Recovered from KV load failure",
        r"Recovered from KV load failure: (?P<count>\d+) request\(s\) rescheduled \((?P<tokens>\d+) tokens affected\)",
        "Recovered from KV load failure: 1 request(s) rescheduled (92 tokens affected).",
        "vLLM v1/core/sched/scheduler.py",
    ),
    _pattern(
        "nixl_failure",
        "NIXL transfer failure: ",
        r"NIXL transfer failure: (?P<type>\w+)(?P<note>[^|]*)\| Context: (?P<context>\{.*)",
        "NIXL transfer failure: transfer_failed | Context: {'failure_type': 'transfer_failed', 'request_id': 'chatcmpl-a-f355111f'}",
        "vLLM 2026+ (PR 32031) nixl/base_worker.py",
    ),
    _pattern(
        "nixl_failure",
        "NIXL transfer setup/initiation failed for request",
        rf"NIXL transfer setup/initiation failed for request {_ID}\. Marking",
        "NIXL transfer setup/initiation failed for request chatcmpl-a. Marking blocks as invalid.",
        "vLLM before 2026 nixl_connector.py",
        type="transfer_setup_failed",
    ),
    _pattern(
        "nixl_failure",
        "NIXL transfer failed for request",
        rf"NIXL transfer failed for request {_ID}[ :.,]",
        "NIXL transfer failed for request chatcmpl-a with state ERR. Marking blocks as invalid.",
        "vLLM before 2026 nixl_connector.py",
        type="transfer_failed",
    ),
    _pattern(
        "nixl_failure",
        "NIXL send_notif failed for request",
        rf"NIXL send_notif failed for request {_ID}: ",
        "NIXL send_notif failed for request chatcmpl-a: NIXL_ERR_REMOTE_DISCONNECT",
        "vLLM before 2026 nixl_connector.py",
        type="notification_failed",
    ),
    _pattern(
        "nixl_failure",
        "Handshake failed for request",
        rf"Handshake failed for request {_ID}(?:, marking|\.|$|\s)",
        "Handshake failed for request chatcmpl-a, marking blocks as invalid",
        "vLLM before 2026 nixl_connector.py",
        type="handshake_failed",
    ),
    _pattern(
        "nixl_failure",
        "Handshake with ",
        rf"Handshake with {_PEER} failed",
        "Handshake with 1f44d83f-b329-433c-90fc-ce825e1a9077 failed",
        "vLLM before 2026 nixl_connector.py",
        type="handshake_setup_failed",
    ),
)

PEER: Final = (
    _pattern(
        "engine_id_mismatch",
        "NIXL agent engine ID mismatch",
        _RAISED
        + r"RuntimeError: Remote NIXL agent engine ID mismatch\. Expected (?P<expected>[\w-]+), ?received (?P<received>[\w-]+)",
        "RuntimeError: Remote NIXL agent engine ID mismatch. Expected 46126a31-1,received 96b1c4ff-2.",
        "vLLM nixl/base_worker.py, vllm#27083",
        _TRACE,
    ),
    _pattern(
        "incompatible",
        "NIXL compatibility hash mismatch",
        _RAISED + r"RuntimeError: NIXL compatibility hash mismatch",
        "RuntimeError: NIXL compatibility hash mismatch. Local: ab, Remote: cd. Prefill and decode instances",
        "vLLM 0.13+ (PR 29503)",
        _TRACE,
    ),
    _pattern(
        "incompatible",
        "Failed to decode Nixl",
        _RAISED + r"RuntimeError: Failed to decode Nixl(?:HandshakePayload|AgentMetadata)\b",
        "RuntimeError: Failed to decode NixlHandshakePayload. Error: x",
        "vLLM nixl/base_worker.py",
        _TRACE,
    ),
    _pattern(
        "incompatible",
        "is not divisible",
        _RAISED + r"AssertionError: Local block size \d+ is not divisible",
        "AssertionError: Local block size 16 is not divisible by remote block size 32 or vice versa.",
        "vllm#42895",
        _TRACE,
    ),
    _pattern(
        "unsupported",
        "AssertionError",
        _RAISED + r"AssertionError\b",
        "AssertionError: Remote advertised no region_members",
        "vLLM nixl/base_worker.py",
        _TRACE,
    ),
    _pattern(
        "unsupported",
        "NotImplementedError",
        _RAISED + r"NotImplementedError\b",
        "NotImplementedError: Replicated PCP cannot be paired with a DCP-sharded NIXL peer.",
        "vLLM nixl/base_worker.py",
        _TRACE,
    ),
    _pattern(
        "unsupported",
        "RuntimeError: Heterogeneous TP",
        _RAISED + r"RuntimeError: Heterogeneous TP",
        "RuntimeError: Heterogeneous TP expects same kv_cache_layout (local LBNHC, remote LBHNC).",
        "vLLM nixl/base_worker.py",
        _TRACE,
    ),
    _pattern(
        "unreachable",
        "ConnectionRefusedError",
        _RAISED + r"ConnectionRefusedError\b",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "Python",
        _TRACE,
    ),
    _pattern(
        "unreachable",
        "zmq.error.Again",
        r"(?:.*\n)?zmq\.error\.Again",
        "zmq.error.Again: Resource temporarily unavailable",
        "the side channel's 5 s time-out",
        _TRACE,
    ),
    _pattern(
        "status_error",
        "NIXL_ERR_",
        _RAISED + r"[\w.]*Error: (?P<status>NIXL_ERR_[A-Z_]+)",
        "nixl_cu13._bindings.nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT",
        "NIXL bindings",
        _TRACE,
    ),
    _pattern(
        "engine_replaced",
        "Remote engine at ",
        rf"Remote engine at (?P<address>\S+) changed from (?P<old>[\w-]+) to {_PEER}\.\s*$",
        "Remote engine at 198.51.100.34:5600 changed from a1298960-cd52 to b1298960-cd52.",
        "vLLM 0.31+ nixl/base_worker.py",
    ),
    _pattern(
        "state_released",
        "Released NIXL state for",
        rf"Released NIXL state for replaced (?:or locally invalid )?remote engine {_PEER}\.\s*$",
        "Released NIXL state for replaced or locally invalid remote engine a1298960-cd52.",
        "vLLM 0.31+",
    ),
    _pattern(
        "metadata_lost",
        "Local NIXL metadata for remote engine",
        rf"Local NIXL metadata for remote engine {_PEER} was invalidated",
        "Local NIXL metadata for remote engine a1298960-cd52 was invalidated; re-handshaking after reads drain.",
        "vLLM 0.32+",
    ),
    _pattern(
        "handshake_time",
        "NIXL handshake: add agent took",
        r"NIXL handshake: add agent took: (?P<seconds>[\d.]+)",
        "NIXL handshake: add agent took: 2.5 (seconds)",
        "vLLM DEBUG",
    ),
)

CONFIG: Final = (
    _pattern(
        "config",
        "non-default args: ",
        r"non-default args: (?P<args>\{.*)",
        "non-default args: {'port': 8200, 'kv_transfer_config': KVTransferConfig(kv_connector='NixlConnector')}",
        "vLLM entrypoints",
    ),
    _pattern(
        "version",
        "  version ",
        r"[^\w'\"]{0,80}?  version (?P<version>\d+\.\d+[\w.+-]*)\s*$",
        " ▄▄ █  version 0.33.0",
        "vLLM banner",
    ),
    _pattern(
        "version",
        "vLLM API server version",
        r"vLLM API server version (?P<version>\d+\.\d+[\w.+-]*)",
        "vLLM API server version 0.11.0",
        "vLLM before 2026",
    ),
    _pattern(
        "version",
        "Initializing a V1 LLM engine",
        r"Initializing a V1 LLM engine \(v(?P<version>\d+\.\d+[\w.+-]*)\)",
        "Initializing a V1 LLM engine (v0.11.0) with config: model='x'",
        "vLLM engine core",
    ),
    _pattern(
        "bidirectional_on",
        "Bidirectional KV transfer is enabled",
        r"Bidirectional KV transfer is enabled and the kv recompute threshold is set to (?P<threshold>\d+) tokens\. ?"
        r"KV blocks on D are released after a TTL of (?P<ttl>\d+) seconds",
        "Bidirectional KV transfer is enabled and the kv recompute threshold is set to 64 tokens.KV blocks on D are released after a TTL of 480 seconds.",
        "vLLM nixl/base_scheduler.py; printed only with a threshold above 0",
    ),
    _pattern(
        "engine_named",
        "Initializing NIXL ",
        r"Initializing NIXL (?:worker|Scheduler|wrapper) (?P<engine>[\w-]+)",
        "Initializing NIXL worker 7d2cd0e6-3b0b-4084-8d58-24cbf5f95022",
        "vLLM nixl",
    ),
    _pattern(
        "engine_named",
        "Creating v1 connector with name",
        r"Creating v1 connector with name: (?P<connector>\w+) and engine_id: (?P<engine>[\w-]+)",
        "Creating v1 connector with name: NixlPullConnector and engine_id: 7d2cd0e6",
        "vLLM kv_connector/factory.py",
    ),
    _pattern(
        "no_connector",
        "but no KVConnector found",
        r"Got kv_transfer_params, but no KVConnector found",
        "Got kv_transfer_params, but no KVConnector found. Disabling KVTransfer for this request.",
        "vLLM v1/engine/core.py",
    ),
    _pattern(
        "nixl_missing",
        "NIXL is not available",
        r"NIXL is not available",
        "NIXL is not available",
        "vLLM nixl",
    ),
    _pattern(
        "invalid_params",
        "Got invalid KVTransferParams",
        r"Got invalid KVTransferParams: (?P<params>.*?)\. This request will not",
        "Got invalid KVTransferParams: {'do_remote_prefill': True}. This request will not utilize KVTransfer",
        "vLLM nixl scheduler",
    ),
    _pattern(
        "started",
        "Application startup complete",
        r"Application startup complete",
        "Application startup complete.",
        "uvicorn",
        _ACCESS,
    ),
    _pattern(
        "process_started",
        "Started server process",
        r"Started server process \[(?P<pid>\d+)\]",
        "Started server process [486]",
        "uvicorn",
        _ACCESS,
    ),
)

DECISION: Final = (
    _pattern(
        "below_threshold",
        "Skipping remote pull for",
        rf"Skipping remote pull for {_ID}: (?P<remote>-?\d+) remote tokens < threshold (?P<threshold>\d+)",
        "Skipping remote pull for chatcmpl-a-9b58b33c: 52 remote tokens < threshold 256",
        "vLLM DEBUG nixl/pull_scheduler.py",
    ),
    _pattern(
        "matched",
        "get_num_new_matched_tokens: num_computed_tokens",
        r"NIXLConnector get_num_new_matched_tokens: num_computed_tokens=(?P<local>\d+), kv_transfer_params=(?P<params>.*)",
        "NIXLConnector get_num_new_matched_tokens: num_computed_tokens=2304, kv_transfer_params={'do_remote_decode': True}",
        "vLLM DEBUG",
    ),
    _pattern(
        "allocated",
        "update_state_after_alloc: num_external_tokens",
        r"NIXLConnector update_state_after_alloc: num_external_tokens=(?P<external>\d+), kv_transfer_params=(?P<params>.*)",
        "NIXLConnector update_state_after_alloc: num_external_tokens=812, kv_transfer_params={'do_remote_decode': True}",
        "vLLM DEBUG",
    ),
    _pattern(
        "retained",
        "NIXLConnector request_finished",
        rf"NIXLConnector request_finished\({_ID}\) waiting for (?P<seconds>[\d.]+) seconds",
        "NIXLConnector request_finished(chatcmpl-a-9b58b33c) waiting for 480 seconds before releasing blocks",
        "vLLM DEBUG",
    ),
    _pattern(
        "read_started",
        "start_load_kv for request",
        rf"start_load_kv for request {_ID} from remote engine {_PEER}\. ",
        "start_load_kv for request chatcmpl-a-9a5b51ae from remote engine 6e318ebf. Num local_block_ids: 1. ",
        "vLLM DEBUG",
    ),
    _pattern(
        "read_finished",
        "Finished recving KV transfer for request",
        rf"Finished recving KV transfer for request {_ID}\s*\.?$",
        "Finished recving KV transfer for request chatcmpl-a-9a5b51ae",
        "vLLM DEBUG",
    ),
    _pattern(
        "received",
        "Received request ",
        rf"Received request {_ID}: (?P<body>.*)",
        "Received request chatcmpl-a: params: SamplingParams(n=1), lora_request: None.",
        "vLLM --enable-log-requests",
    ),
)

ENDING: Final = (
    _pattern(
        "aborted",
        "Aborted request(s)",
        r"Aborted request\(s\) (?P<ids>.{1,4000}?)\.?\s*$",
        "Aborted request(s) chatcmpl-a-9a5b51ae.",
        "vLLM async_llm.py",
    ),
    _pattern(
        "aborted_outside",
        " aborted.",
        rf"Request {_ID} aborted\.",
        "Request chatcmpl-a aborted.",
        "vLLM async_llm.py",
    ),
    _pattern(
        "internal_error",
        "failed with an internal error during generation",
        rf"Request {_ID} failed with an internal error during generation",
        "Request chatcmpl-a failed with an internal error during generation",
        "vLLM entrypoints",
    ),
    _pattern(
        "engine_dead",
        "failed (engine dead)",
        rf"Request {_ID} failed \(engine dead\)",
        "Request chatcmpl-a failed (engine dead).",
        "vLLM async_llm.py",
    ),
    _pattern(
        "bad_request",
        "failed (bad request)",
        rf"Request {_ID} failed \(bad request\)",
        "Request chatcmpl-a failed (bad request): prompt too long.",
        "vLLM async_llm.py",
    ),
    _pattern(
        "fatal",
        "EngineCore encountered a fatal error",
        r"EngineCore encountered a fatal error",
        "EngineCore encountered a fatal error.",
        "vLLM v1/engine/core.py",
    ),
    _pattern(
        "fatal",
        "AsyncLLM output_handler failed",
        r"AsyncLLM output_handler failed",
        "AsyncLLM output_handler failed.",
        "vLLM async_llm.py",
    ),
    _pattern(
        "fatal",
        "died unexpectedly",
        r"(?:Worker proc|Engine core proc|EngineCore|Core|Process)\b.{0,120} died unexpectedly",
        "Worker proc VllmWorker-0 died unexpectedly, shutting down executor.",
        "vLLM multiproc_executor.py",
    ),
    _pattern(
        "stopping",
        "[shutdown] ",
        r"\[shutdown\] ",
        "[shutdown] EngineCore: trigger received signal=SIGTERM",
        "vLLM 0.32 launcher.py",
    ),
    _pattern(
        "stopping",
        "Shutting down",
        r"Shutting down$",
        "Shutting down",
        "uvicorn",
        _ACCESS,
    ),
    _pattern(
        "stalled",
        "No available shared memory broadcast block found",
        r"No available shared memory broadcast block found",
        "No available shared memory broadcast block found in 60 seconds. x",
        "vLLM shm_broadcast.py",
    ),
    _pattern(
        "crash",
        "Caught signal ",
        r"(?:.*\] )?Caught signal (?P<signal>\d+)",
        "[host:760 :0:760] Caught signal 11 (Segmentation fault: address not mapped)",
        "UCX",
        frozenset({"bare", "native"}),
    ),
    _pattern(
        "http_error",
        "HTTP/1.1 4xx or 5xx",
        r'\S+ - "(?P<method>\w+) (?P<route>\S+) HTTP/[\d.]+" (?P<status>[45]\d\d)\b',
        '203.0.113.77:41233 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error',
        "uvicorn",
        _ACCESS,
        spellings=_ERROR_STATUS,
    ),
)

LOAD: Final = (
    _pattern(
        "load",
        "Avg prompt throughput: ",
        r"(?:Engine (?P<engine>\d+): |\d+ Engines Aggregated: )?Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, "
        r"Avg generation throughput: (?P<generation>[\d.]+) tokens/s, Running: (?P<running>\d+) reqs"
        r"(?:, Swapped: \d+ reqs)?(?:, (?:Waiting|Pending): (?P<waiting>\d+) reqs)?(?P<rest>.*)",
        "Engine 000: Avg prompt throughput: 180.0 tokens/s, Avg generation throughput: 0.2 tokens/s, Running: 0 reqs, "
        "Waiting: 0 reqs, GPU KV cache usage: 2.1%, Prefix cache hit rate: 58.0%",
        "vLLM v1/metrics/loggers.py",
    ),
    _pattern(
        "transfers",
        "KV Transfer metrics: ",
        r"KV Transfer metrics: (?P<pairs>.*)",
        "KV Transfer metrics: Num successful transfers=2, Avg xfer time (ms)=22.4, Num KV expired reqs=0",
        "vLLM v1/metrics",
    ),
    _pattern(
        "preempted",
        " is preempted by ",
        r"Sequence group (?P<id>\S{1,300}) is preempted by ",
        "Sequence group cmpl-a is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space.",
        "vLLM V0",
    ),
)

ROUTER: Final = (
    _pattern(
        "router_ready",
        " decode instances",
        r"Ready: (?P<prefills>\d+) prefill, (?P<decodes>\d+) decode instances",
        "Ready: 1 prefill, 1 decode instances",
        "vLLM disagg_proxy_multiturn.py",
        _ROUTER,
    ),
    _pattern(
        "lookup_hit",
        ": cache HIT",
        r"conv=(?P<conversation>.{0,256}): cache HIT \(age=(?P<age>[\d.]+)s\)",
        "conv=wf-7c1: cache HIT (age=6.0s)",
        "disagg_proxy_multiturn.py",
        _ROUTER,
    ),
    _pattern(
        "lookup_miss",
        ": cache MISS",
        rf"\[{_ID}\] conv=(?P<conversation>.{{0,256}}): cache MISS",
        "[e6b64ea9-987d-4e91-b1ae-e1861e10de84] conv=wf-7c1: cache MISS",
        "disagg_proxy_multiturn.py",
        _ROUTER,
    ),
    _pattern(
        "lookup_stale",
        ": stale cache entry",
        r"conv=(?P<conversation>.{0,256}): stale cache entry \(age=(?P<age>[\d.]+)s > ttl=(?P<ttl>[\d.]+)s\)",
        "conv=desk-1: stale cache entry (age=463.0s > ttl=450.0s), discarding",
        "disagg_proxy_multiturn.py",
        _ROUTER,
    ),
    _pattern(
        "handle_sent",
        "cached blocks to P (remote_request_id",
        rf"\[{_ID}\] conv=(?P<conversation>.{{0,256}}): sending D's cached blocks to P \(remote_request_id=(?P<handle>[^)\s]{{1,300}})\)",
        "[179c7f76] conv=wf-7c1: sending D's cached blocks to P (remote_request_id=chatcmpl-e6b64ea9-1832ea24)",
        "disagg_proxy_multiturn.py",
        _ROUTER,
    ),
    _pattern(
        "handle_stored",
        ": cached D blocks",
        r"conv=(?P<conversation>.{0,256}): cached D blocks \(remote_request_id=(?P<handle>[^,)\s]{1,300}), blocks=(?P<blocks>\d+)\)",
        "conv=wf-7c1: cached D blocks (remote_request_id=chatcmpl-e6b64ea9-1832ea24, blocks=196)",
        "disagg_proxy_multiturn.py",
        _ROUTER,
    ),
    _pattern(
        "prefill_done",
        " Prefill done in ",
        rf"\[{_ID}\] Prefill done in (?P<ms>\d+)ms",
        "[e6b64ea9] Prefill done in 410ms",
        "disagg_proxy_multiturn.py",
        _ROUTER,
    ),
    _pattern(
        "no_conversation_id",
        "No conversation_id provided",
        rf"\[{_ID}\] No conversation_id provided",
        "[a920806f] No conversation_id provided - KV cache reuse disabled for this request.",
        "disagg_proxy_multiturn.py",
        _ROUTER,
    ),
    _pattern(
        "upstream_call",
        "HTTP Request: POST ",
        r"HTTP Request: POST (?P<url>\S{1,500}) \"HTTP/[\d.]+ (?P<status>\d\d\d)",
        'HTTP Request: POST http://198.51.100.21:8100/v1/chat/completions "HTTP/1.1 200 OK"',
        "httpx",
        _ROUTER,
    ),
    _pattern(
        "toy_ready",
        " decode clients.",
        r"Initialized (?P<prefills>\d+) prefill clients and (?P<decodes>\d+) decode clients",
        "Initialized 2 prefill clients and 1 decode clients.",
        "toy_proxy_server.py",
        _BARE,
    ),
    _pattern(
        "router_error",
        "Error occurred in disagg prefill proxy server",
        r"Error occurred in disagg prefill proxy server",
        "Error occurred in disagg prefill proxy server - /chat/completions endpoint",
        "toy_proxy_server.py",
        _BARE,
    ),
    _pattern(
        "connect_error",
        "All connection attempts failed",
        r"(?:[\w.]+: )?All connection attempts failed",
        "httpx.ConnectError: All connection attempts failed",
        "httpx",
        frozenset({"bare", "proxy"}),
    ),
    _pattern(
        "connect_error",
        "for url ",
        r"httpx\.HTTPStatusError: (?:Server|Client) error '(?P<status>\d\d\d)",
        "httpx.HTTPStatusError: Server error '500 Internal Server Error' for url 'http://198.51.100.21:8100/v1/chat/completions'",
        "httpx",
        frozenset({"bare", "proxy"}),
    ),
    _pattern(
        "connect_error",
        "httpx.",
        r"(?:httpx|httpcore)\.(?:ConnectError|ConnectTimeout|ReadTimeout|ReadError|RemoteProtocolError|PoolTimeout|WriteError)\b",
        "httpx.ReadTimeout",
        "httpx",
        frozenset({"bare", "proxy"}),
    ),
)

NATIVE: Final = (
    _pattern(
        "native_failure",
        "postXferReq: ",
        r"postXferReq: .*",
        "postXferReq: remote agent 'a' was disconnected after transfer request creation",
        "NIXL nixl_agent.cpp",
        _NATIVE,
    ),
    _pattern(
        "native_failure",
        "createXferReq: ",
        r"createXferReq: .*",
        "createXferReq: metadata for remote agent 'a' not found",
        "NIXL nixl_agent.cpp",
        _NATIVE,
    ),
    _pattern(
        "native_failure",
        "Transport retry count exceeded",
        r"Transport retry count exceeded on (?P<device>\S+)",
        "Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)",
        "UCX ib_mlx5_log.c",
        _NATIVE,
    ),
    _pattern(
        "native_failure",
        "Remote I/O error",
        r".*Remote I/O error",
        "mlx5dv_devx_obj_modify(opcode=0x503) failed, syndrome 0x5d668c: Remote I/O error",
        "UCX, smg#2382",
        _NATIVE,
    ),
    _pattern(
        "native_failure",
        "UCX error handling callback",
        r".*UCX error handling callback was invoked with status (?P<status>-?\d+)",
        "ep 0x1: state CONNECTED, UCX error handling callback was invoked with status -80 (Endpoint timeout)",
        "NIXL ucx_utils.cpp",
        _NATIVE,
    ),
    _pattern(
        "native_failure",
        "Unexpected UCX error",
        r"Unexpected UCX error: .*",
        "Unexpected UCX error: Endpoint timeout",
        "NIXL ucx_utils.cpp",
        _NATIVE,
    ),
    _pattern(
        "native_failure",
        "failed: Connection refused",
        r"connect\(fd=.*failed: Connection refused",
        "connect(fd=123, dest_addr=198.51.100.21:41000) failed: Connection refused",
        "UCX sock.c",
        _NATIVE,
    ),
    _pattern(
        "native_failure",
        "failed: Input/output error",
        r"tcp_ep .*failed: Input/output error",
        "tcp_ep 0x1 (state=CONNECTED): send(110) failed: Input/output error",
        "UCX tcp_ep.c",
        _NATIVE,
    ),
    _pattern(
        "native_failure",
        "Local protection error on",
        r"Local protection error on .*",
        "Local protection error on mlx5_0:1/RoCE",
        "UCX",
        _NATIVE,
    ),
    _pattern(
        "native_notification",
        "genNotif: ",
        r"genNotif: .*",
        "genNotif: no specified or potential backend could send the inter-agent notifications",
        "NIXL nixl_agent.cpp",
        _NATIVE,
    ),
    _pattern(
        "telemetry_off",
        "NIXL telemetry is disabled",
        r"NIXL telemetry is disabled",
        "NIXL telemetry is disabled; ignoring telemetry requested through agent config",
        "NIXL nixl_agent.cpp",
        _NATIVE,
    ),
    _pattern(
        "slow_transport",
        "UCX CUDA support was not found",
        r".*UCX CUDA support was not found",
        "NVIDIA GPU(s) were detected, but UCX CUDA support was not found! GPU memory is not supported.",
        "NIXL ucx_utils.cpp",
        _NATIVE,
    ),
    _pattern(
        "slow_transport",
        "accelerated IB support was not found",
        r".*accelerated IB support was not found",
        "IB device(s) were detected, but accelerated IB support was not found! Performance may be degraded.",
        "NIXL ucx_utils.cpp",
        _NATIVE,
    ),
    _pattern(
        "slow_transport",
        "Amazon EFA(s) were detected",
        r"Amazon EFA\(s\) were detected, but the UCX backend was configured",
        "Amazon EFA(s) were detected, but the UCX backend was configured. x",
        "NIXL",
        _NATIVE,
    ),
    _pattern(
        "slow_transport",
        " rma(tcp/",
        r".*\brma\(tcp/",
        "ucp_context_0 inter-node cfg#3 rma(tcp/eth0)",
        "UCX INFO",
        _NATIVE,
    ),
    _pattern(
        "nixl_named",
        "Initialized NIXL agent",
        r"Initialized NIXL agent: (?P<agent>\S+)",
        "Initialized NIXL agent: 115c75aa-39fc-51b1-bb4f-0ceb5f30ca7d",
        "NIXL _api.py",
        _NATIVE,
    ),
)

METRICS: Final = (
    _pattern(
        "sample",
        "metrics sample",
        r"(?P<name>(?:vllm:|kvdiag_|process_start)\w*)(?:\{(?P<labels>.*)\})? (?P<value>[\d.eE+-]+)(?: \d+)?\s*$",
        'vllm:num_preemptions_total{engine="0"} 3.0',
        "Prometheus text format",
        frozenset({"bare"}),
        find=r"(?m)^(?:vllm:|kvdiag_|process_start_time_seconds)",
    ),
)

RECORD: Final = (
    _pattern("record", "kvdiag.turn/", r"", "", "our turn log", _JSON),
    _pattern("record", "kvdiag.kv/", r"", "", "our event log", _JSON),
    _pattern(
        "router_line",
        "kvdiag.router",
        r"",
        "kvdiag.router draining: 0 turns in flight",
        "our router's own log",
        frozenset({"proxy", "json"}),
    ),
    _pattern(
        "sidecar_error",
        "connector_nixlv2.go",
        r".*(?:fail|error)",
        "request failed",
        "llm-d sidecar",
        _JSON,
    ),
)

FOREIGN: Final = (
    _pattern(
        "foreign",
        "nginx access line",
        r'\S+ - \S+ \[\d\d/\w{3}/\d{4}:[^\]]+\] "\w+ ',
        '203.0.113.7 - - [10/Nov/2026:10:00:33 +0000] "POST /v1/chat/completions HTTP/1.1" 200 512 "-" "python"',
        "nginx, combined format",
        _BARE,
        spellings=('] "POST /', '] "GET /', '] "HEAD /', '] "POST /', '] "GET /'),
        system="nginx",
    ),
    _pattern(
        "foreign",
        "Decode batch",
        r".*Decode batch[,.] #running",
        "[2026-04-08 14:05:21 TP0] Decode batch, #running-req: 5",
        "SGLang",
        _BARE,
        system="SGLang",
    ),
    _pattern(
        "foreign",
        "Prefill batch",
        r".*Prefill batch[,.] #new",
        "[2026-04-08 14:05:21 TP0] Prefill batch, #new-seq: 5",
        "SGLang",
        _BARE,
        system="SGLang",
    ),
    _pattern(
        "foreign",
        "dynamo_",
        r".*\bdynamo_\w+::",
        "2026-04-08T14:05:21Z  INFO dynamo_llm::kv_router: x",
        "Dynamo",
        frozenset({"bare", "json", "proxy"}),
        system="Dynamo",
    ),
    _pattern(
        "foreign",
        "LMCache INFO",
        r".*\[\d{4}-[^\]]+\] LMCache \w+:",
        "[2025-07-21 11:32:29,953] LMCache INFO: Reqid: 1",
        "LMCache",
        _BARE,
        system="LMCache",
    ),
)

PATTERNS: Final[tuple[Pattern, ...]] = (
    *EXPIRY,
    *FAILURE,
    *PEER,
    *CONFIG,
    *DECISION,
    *ENDING,
    *LOAD,
    *ROUTER,
    *NATIVE,
    *METRICS,
    *RECORD,
    *FOREIGN,
)
"""Every pattern; its index is its id in the scanner."""
