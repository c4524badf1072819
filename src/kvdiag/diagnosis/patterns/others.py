"""What is no log line of vLLM: metrics, our own records, other systems."""

from __future__ import annotations

from typing import Final

from kvdiag.diagnosis.patterns.base import BARE, JSON, pattern

METRICS: Final = (
    pattern(
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
    pattern("record", "kvdiag.turn/", r"", "", "our turn log", JSON),
    pattern("record", "kvdiag.kv/", r"", "", "our event log", JSON),
    pattern(
        "router_line",
        "kvdiag.router",
        r"",
        "kvdiag.router draining: 0 turns in flight",
        "our router's own log",
        frozenset({"proxy", "json"}),
    ),
    pattern(
        "sidecar_error",
        "connector_nixlv2.go",
        r".*(?:fail|error)",
        "request failed",
        "llm-d sidecar",
        JSON,
    ),
)

FOREIGN: Final = (
    pattern(
        "foreign",
        "nginx access line",
        r'\S+ - \S+ \[\d\d/\w{3}/\d{4}:[^\]]+\] "\w+ ',
        '203.0.113.7 - - [10/Nov/2026:10:00:33 +0000] "POST /v1/chat/completions HTTP/1.1" 200 512 "-" "python"',
        "nginx, combined format",
        BARE,
        spellings=('] "POST /', '] "GET /', '] "HEAD /', '] "POST /', '] "GET /'),
        system="nginx",
    ),
    pattern(
        "foreign",
        "Decode batch",
        r".*Decode batch[,.] #running",
        "[2026-04-08 14:05:21 TP0] Decode batch, #running-req: 5",
        "SGLang",
        BARE,
        system="SGLang",
    ),
    pattern(
        "foreign",
        "Prefill batch",
        r".*Prefill batch[,.] #new",
        "[2026-04-08 14:05:21 TP0] Prefill batch, #new-seq: 5",
        "SGLang",
        BARE,
        system="SGLang",
    ),
    pattern(
        "foreign",
        "dynamo_",
        r".*\bdynamo_\w+::",
        "2026-04-08T14:05:21Z  INFO dynamo_llm::kv_router: x",
        "Dynamo",
        frozenset({"bare", "json", "proxy"}),
        system="Dynamo",
    ),
    pattern(
        "foreign",
        "LMCache INFO",
        r".*\[\d{4}-[^\]]+\] LMCache \w+:",
        "[2025-07-21 11:32:29,953] LMCache INFO: Reqid: 1",
        "LMCache",
        BARE,
        system="LMCache",
    ),
)
