"""Messages of an engine about itself and its requests."""

from __future__ import annotations

from typing import Final

from kvdiag.diagnosis.patterns.base import ACCESS, ERROR_STATUS, ID, PEER, RAISED, TRACE, pattern

CONFIG: Final = (
    pattern(
        "config",
        "non-default args: ",
        r"non-default args: (?P<args>\{.*)",
        "non-default args: {'port': 8200, 'kv_transfer_config': KVTransferConfig(kv_connector='NixlConnector')}",
        "vLLM entrypoints",
    ),
    pattern(
        "version",
        "  version ",
        r"[^\w'\"]{0,80}?  version (?P<version>\d+\.\d+[\w.+-]*)\s*$",
        " ▄▄ █  version 0.33.0",
        "vLLM banner",
    ),
    pattern(
        "version",
        "vLLM API server version",
        r"vLLM API server version (?P<version>\d+\.\d+[\w.+-]*)",
        "vLLM API server version 0.11.0",
        "vLLM before 2026",
    ),
    pattern(
        "version",
        "Initializing a V1 LLM engine",
        r"Initializing a V1 LLM engine \(v(?P<version>\d+\.\d+[\w.+-]*)\)",
        "Initializing a V1 LLM engine (v0.11.0) with config: model='x'",
        "vLLM engine core",
    ),
    pattern(
        "bidirectional_on",
        "Bidirectional KV transfer is enabled",
        r"Bidirectional KV transfer is enabled and the kv recompute threshold is set to (?P<threshold>\d+) tokens\. ?"
        r"KV blocks on D are released after a TTL of (?P<ttl>\d+) seconds",
        "Bidirectional KV transfer is enabled and the kv recompute threshold is set to 64 tokens.KV blocks on D are released after a TTL of 480 seconds.",
        "vLLM nixl/base_scheduler.py; printed only with a threshold above 0",
    ),
    pattern(
        "engine_named",
        "Initializing NIXL ",
        r"Initializing NIXL (?:worker|Scheduler|wrapper) (?P<engine>[\w-]+)",
        "Initializing NIXL worker 7d2cd0e6-3b0b-4084-8d58-24cbf5f95022",
        "vLLM nixl",
    ),
    pattern(
        "engine_named",
        "Creating v1 connector with name",
        r"Creating v1 connector with name: (?P<connector>\w+) and engine_id: (?P<engine>[\w-]+)",
        "Creating v1 connector with name: NixlPullConnector and engine_id: 7d2cd0e6",
        "vLLM kv_connector/factory.py",
    ),
    pattern(
        "no_connector",
        "but no KVConnector found",
        r"Got kv_transfer_params, but no KVConnector found",
        "Got kv_transfer_params, but no KVConnector found. Disabling KVTransfer for this request.",
        "vLLM v1/engine/core.py",
    ),
    pattern(
        "nixl_missing",
        "NIXL is not available",
        r"NIXL is not available",
        "NIXL is not available",
        "vLLM nixl",
    ),
    pattern(
        "invalid_params",
        "Got invalid KVTransferParams",
        r"Got invalid KVTransferParams: (?P<params>.*?)\. This request will not",
        "Got invalid KVTransferParams: {'do_remote_prefill': True}. This request will not utilize KVTransfer",
        "vLLM nixl scheduler",
    ),
    pattern(
        "started",
        "Application startup complete",
        r"Application startup complete",
        "Application startup complete.",
        "uvicorn",
        ACCESS,
    ),
    pattern(
        "process_started",
        "Started server process",
        r"Started server process \[(?P<pid>\d+)\]",
        "Started server process [486]",
        "uvicorn",
        ACCESS,
    ),
)

DECISION: Final = (
    pattern(
        "below_threshold",
        "Skipping remote pull for",
        rf"Skipping remote pull for {ID}: (?P<remote>-?\d+) remote tokens < threshold (?P<threshold>\d+)",
        "Skipping remote pull for chatcmpl-a-9b58b33c: 52 remote tokens < threshold 256",
        "vLLM DEBUG nixl/pull_scheduler.py",
    ),
    pattern(
        "matched",
        "get_num_new_matched_tokens: num_computed_tokens",
        r"NIXLConnector get_num_new_matched_tokens: num_computed_tokens=(?P<local>\d+), kv_transfer_params=(?P<params>.*)",
        "NIXLConnector get_num_new_matched_tokens: num_computed_tokens=2304, kv_transfer_params={'do_remote_decode': True}",
        "vLLM DEBUG",
    ),
    pattern(
        "allocated",
        "update_state_after_alloc: num_external_tokens",
        r"NIXLConnector update_state_after_alloc: num_external_tokens=(?P<external>\d+), kv_transfer_params=(?P<params>.*)",
        "NIXLConnector update_state_after_alloc: num_external_tokens=812, kv_transfer_params={'do_remote_decode': True}",
        "vLLM DEBUG",
    ),
    pattern(
        "retained",
        "NIXLConnector request_finished",
        rf"NIXLConnector request_finished\({ID}\) waiting for (?P<seconds>[\d.]+) seconds",
        "NIXLConnector request_finished(chatcmpl-a-9b58b33c) waiting for 480 seconds before releasing blocks",
        "vLLM DEBUG",
    ),
    pattern(
        "read_started",
        "start_load_kv for request",
        rf"start_load_kv for request {ID} from remote engine {PEER}\. ",
        "start_load_kv for request chatcmpl-a-9a5b51ae from remote engine 6e318ebf. Num local_block_ids: 1. ",
        "vLLM DEBUG",
    ),
    pattern(
        "read_finished",
        "Finished recving KV transfer for request",
        rf"Finished recving KV transfer for request {ID}\s*\.?$",
        "Finished recving KV transfer for request chatcmpl-a-9a5b51ae",
        "vLLM DEBUG",
    ),
    pattern(
        "received",
        "Received request ",
        rf"Received request {ID}: (?P<body>.*)",
        "Received request chatcmpl-a: params: SamplingParams(n=1), lora_request: None.",
        "vLLM --enable-log-requests",
    ),
    pattern(
        "added",
        "Added request ",
        rf"Added request {ID}\.\s*$",
        "Added request chatcmpl-a-9a5b51ae.",
        "vLLM --enable-log-requests async_llm.py",
    ),
)

ENDING: Final = (
    pattern(
        "aborted",
        "Aborted request(s)",
        r"Aborted request\(s\) (?P<ids>.{1,4000}?)\.?\s*$",
        "Aborted request(s) chatcmpl-a-9a5b51ae.",
        "vLLM async_llm.py",
    ),
    pattern(
        "aborted_outside",
        " aborted.",
        rf"Request {ID} aborted\.",
        "Request chatcmpl-a aborted.",
        "vLLM async_llm.py",
    ),
    pattern(
        "internal_error",
        "failed with an internal error during generation",
        rf"Request {ID} failed with an internal error during generation",
        "Request chatcmpl-a failed with an internal error during generation",
        "vLLM entrypoints",
    ),
    pattern(
        "engine_dead",
        "failed (engine dead)",
        rf"Request {ID} failed \(engine dead\)",
        "Request chatcmpl-a failed (engine dead).",
        "vLLM async_llm.py",
    ),
    pattern(
        "bad_request",
        "failed (bad request)",
        rf"Request {ID} failed \(bad request\)",
        "Request chatcmpl-a failed (bad request): prompt too long.",
        "vLLM async_llm.py",
    ),
    pattern(
        "fatal",
        "EngineCore encountered a fatal error",
        r"EngineCore encountered a fatal error",
        "EngineCore encountered a fatal error.",
        "vLLM v1/engine/core.py",
    ),
    pattern(
        "fatal",
        "AsyncLLM output_handler failed",
        r"AsyncLLM output_handler failed",
        "AsyncLLM output_handler failed.",
        "vLLM async_llm.py",
    ),
    pattern(
        "fatal",
        "died unexpectedly",
        r"(?:Worker proc|Engine core proc|EngineCore|Core|Process)\b.{0,120} died unexpectedly",
        "Worker proc VllmWorker-0 died unexpectedly, shutting down executor.",
        "vLLM multiproc_executor.py",
    ),
    pattern(
        "start_failed",
        " failed to start.",
        r"(?:EngineCore|WorkerProc) failed to start\.",
        "EngineCore failed to start.",
        "vLLM v1/engine/core.py, multiproc_executor.py",
    ),
    pattern(
        "start_failed",
        "Engine core initialization failed",
        RAISED + r"RuntimeError: Engine core initialization failed",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "vLLM v1/engine/utils.py",
        TRACE,
    ),
    pattern(
        "start_failed",
        "] error while attempting to bind on address",
        r"\[Errno 98\] error while attempting to bind on address",
        "[Errno 98] error while attempting to bind on address ('0.0.0.0', 8200): address already in use",
        "uvicorn",
        ACCESS,
    ),
    pattern(
        "raised",
        "Error: ",
        RAISED
        + r"(?P<error>(?:Value|Runtime|OS|Import|Key|Type|Assertion|FileNotFound|Permission|OutOfMemory|Validation)Error): (?P<text>.{1,300})",
        "ValueError: To serve at least one request with the model's max seq len (131072), 16.00 GiB KV cache is needed",
        "Python, last line of a traceback",
        TRACE,
    ),
    pattern(
        "stopping",
        "[shutdown] ",
        r"\[shutdown\] ",
        "[shutdown] EngineCore: trigger received signal=SIGTERM",
        "vLLM 0.32 launcher.py",
    ),
    pattern(
        "stopping",
        "Shutting down",
        r"Shutting down$",
        "Shutting down",
        "uvicorn",
        ACCESS,
    ),
    pattern(
        "stalled",
        "No available shared memory broadcast block found",
        r"No available shared memory broadcast block found",
        "No available shared memory broadcast block found in 60 seconds. x",
        "vLLM shm_broadcast.py",
    ),
    pattern(
        "crash",
        "Caught signal ",
        r"(?:\[\d+\.\d+\] +)?(?:\[[\w.-]{1,120}(?::\d+ *){1,4}\] +)?Caught signal (?P<signal>\d+)",
        "[host:760 :0:760] Caught signal 11 (Segmentation fault: address not mapped)",
        "UCX",
        frozenset({"bare", "native"}),
    ),
    pattern(
        "http_error",
        "HTTP/1.1 4xx or 5xx",
        r'\S+ - "(?P<method>\w+) (?P<route>\S+) HTTP/[\d.]+" (?P<status>[45]\d\d)\b',
        '203.0.113.77:41233 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error',
        "uvicorn",
        ACCESS,
        spellings=ERROR_STATUS,
    ),
)

LOAD: Final = (
    pattern(
        "load",
        "Avg prompt throughput: ",
        r"(?:Engine (?P<engine>\d+): |\d+ Engines Aggregated: )?Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, "
        r"Avg generation throughput: (?P<generation>[\d.]+) tokens/s, Running: (?P<running>\d+) reqs"
        r"(?:, Swapped: \d+ reqs)?(?:, (?:Waiting|Pending): (?P<waiting>\d+) reqs)?(?P<rest>.*)",
        "Engine 000: Avg prompt throughput: 180.0 tokens/s, Avg generation throughput: 0.2 tokens/s, Running: 0 reqs, "
        "Waiting: 0 reqs, GPU KV cache usage: 2.1%, Prefix cache hit rate: 58.0%",
        "vLLM v1/metrics/loggers.py",
    ),
    pattern(
        "transfers",
        "KV Transfer metrics: ",
        r"KV Transfer metrics: (?P<pairs>.*)",
        "KV Transfer metrics: Num successful transfers=2, Avg xfer time (ms)=22.4, Num KV expired reqs=0",
        "vLLM v1/metrics",
    ),
    pattern(
        "preempted",
        " is preempted by ",
        r"Sequence group (?P<id>\S{1,300}) is preempted by ",
        "Sequence group cmpl-a is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space.",
        "vLLM V0",
    ),
)
