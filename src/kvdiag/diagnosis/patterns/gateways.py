"""Messages of other projects' routers about single requests: which engines they chose, when, and what came back."""

from __future__ import annotations

from typing import Final

from kvdiag.diagnosis.patterns.base import ID, JSON, ROUTER, pattern

_URL: Final = r"(?P<url>\S{1,500}?)"
# Rust's tracing puts the place in the source before the message.
_RUST: Final = r"vllm_router_rs::[\w:]+: (?:\S+\.rs:\d+: )?\W{0,4}"

PRODUCTION_STACK: Final = (
    pattern(
        "router_line",
        "vllm_router.services.",
        r"",
        "",
        "production-stack's logger, every line of a request",
        ROUTER,
        product="production-stack",
    ),
    pattern(
        "routed",
        " Sending prefill request to ",
        rf"\[{ID}\] Sending prefill request to {_URL}(?:\s|$)",
        "[1dc43352-c8cb-4e60-8776-232089519853] Sending prefill request to http://198.51.100.21:8100/v1/chat/completions",
        "production-stack request.py, disaggregated_prefill_orchestrated",
        ROUTER,
        to="prefill",
        product="production-stack",
    ),
    pattern(
        "routed",
        " Routing request to ",
        rf"\[{ID}\] Routing request to {_URL} for decode",
        "[1dc43352-c8cb-4e60-8776-232089519853] Routing request to http://198.51.100.34:8200 for decode",
        "production-stack request.py, disaggregated_prefill_orchestrated",
        ROUTER,
        to="decode",
        product="production-stack",
    ),
    pattern(
        "prefill_timed",
        " prefill time (TTFT): ",
        rf"{ID} prefill time \(TTFT\): (?P<seconds>\d+\.\d+)",
        "1dc43352-c8cb-4e60-8776-232089519853 prefill time (TTFT): 0.4123",
        "production-stack request.py, disaggregated_prefill",
        ROUTER,
        product="production-stack",
    ),
    pattern(
        "routed_in",
        "Routing request ",
        rf"Routing request {ID}(?: with session id (?P<session>\S{{1,256}}))? to {_URL} at \d+\.\d+, process time = (?P<seconds>\d+\.\d+)",
        "Routing request 1dc43352-c8cb with session id None to http://198.51.100.21:8100 at 1796720460.55, process time = 0.4190",
        "production-stack request.py",
        ROUTER,
        product="production-stack",
    ),
    pattern(
        "refused",
        "HTTP error in prefiller: ",
        rf"(?:\[{ID}\] )?HTTP error in prefiller: (?P<status>\d\d\d)",
        "[e1fb34d5-469a-4b41] HTTP error in prefiller: 500, message='Internal Server Error', url='http://198.51.100.21:8100/v1/chat/completions'",
        "production-stack request.py",
        ROUTER,
        product="production-stack",
    ),
    pattern(
        "refused",
        "HTTP error in decoder: ",
        rf"(?:\[{ID}\] )?HTTP error in decoder: (?P<status>\d\d\d)",
        "HTTP error in decoder: 503, message='Service Unavailable', url='http://198.51.100.34:8200/v1/chat/completions'",
        "production-stack request.py",
        ROUTER,
        product="production-stack",
    ),
)

VLLM_ROUTER: Final = (
    pattern(
        "router_line",
        "vllm_router_rs::",
        r"vllm_router_rs::",
        "vllm_router_rs::server: src/server.rs:1046: Starting server on 0.0.0.0:10001",
        "vllm-router (Rust), every line",
        ROUTER,
        product="vllm-router",
    ),
    pattern(
        "routed",
        "vLLM Stage 1 - Prefill: ",
        rf"{_RUST}vLLM Stage 1 - Prefill: {_URL} with request_id: {ID}\s*$",
        "vllm_router_rs::routers::http::vllm_pd_router: src/routers/http/vllm_pd_router.rs:676: vLLM Stage 1 - Prefill: http://198.51.100.21:8100/v1/chat/completions with request_id: "
        "___prefill_addr_198.51.100.21:8100___decode_addr_198.51.100.34:8200_4cf1a6c8f7d94a0d8e5ad0f5c1d1c9ab",
        "vllm-router (Rust) vllm_pd_router.rs; INFO in early builds, DEBUG since",
        ROUTER,
        to="prefill",
        product="vllm-router",
    ),
    pattern(
        "routed",
        "vLLM Stage 2 - Decode: ",
        rf"{_RUST}vLLM Stage 2 - Decode: {_URL} with request_id: {ID}\s*$",
        "vllm_router_rs::routers::http::vllm_pd_router: src/routers/http/vllm_pd_router.rs:790: vLLM Stage 2 - Decode: http://198.51.100.34:8200/v1/chat/completions with request_id: "
        "___prefill_addr_198.51.100.21:8100___decode_addr_198.51.100.34:8200_4cf1a6c8f7d94a0d8e5ad0f5c1d1c9ab",
        "vllm-router (Rust) vllm_pd_router.rs; INFO in early builds, DEBUG since",
        ROUTER,
        to="decode",
        product="vllm-router",
    ),
)

LLM_D: Final = (
    pattern(
        "router_line",
        "proxy/connector_nixlv2.go",
        r"",
        "",
        "llm-d routing sidecar, every line of its NIXL protocol",
        JSON,
        product="llm-d",
    ),
    pattern(
        "arrived",
        "EPP received request",
        r"EPP received request$",
        "EPP received request",
        "llm-d inference scheduler, handlers/server.go; the request's id under x-request-id",
        JSON,
        product="llm-d",
    ),
    pattern(
        "scheduled",
        "Request handled",
        r"Request handled$",
        "Request handled",
        "llm-d inference scheduler, requestcontrol/director.go; the engine chosen under endpoint",
        JSON,
        product="llm-d",
    ),
    pattern(
        "retried",
        "retrying prefill request",
        r"retrying prefill request$",
        "retrying prefill request",
        "llm-d routing sidecar, connector_nixlv2.go; with request_id, target and previous_code",
        JSON,
        product="llm-d",
    ),
    pattern(
        "refused",
        "prefill request failed",
        r"prefill request failed$",
        "prefill request failed",
        "llm-d routing sidecar, connector_nixlv2.go; with request_id",
        JSON,
        product="llm-d",
    ),
    pattern(
        "fell_back",
        "fallback to decode",
        r"fallback to decode$",
        "fallback to decode",
        "llm-d routing sidecar, connector_nixlv2.go; with request_id",
        JSON,
        product="llm-d",
    ),
    pattern(
        "no_params",
        "field in prefiller response",
        r"warning: missing 'kv_transfer_params' field in prefiller response",
        "warning: missing 'kv_transfer_params' field in prefiller response",
        "llm-d routing sidecar, connector_nixlv2.go",
        JSON,
        product="llm-d",
    ),
)
