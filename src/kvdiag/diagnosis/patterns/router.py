"""Messages of routers: the multi-turn example proxy, the toy proxy, httpx below them."""

from __future__ import annotations

from typing import Final

from kvdiag.diagnosis.patterns.base import BARE, ID, ROUTER, pattern

# The client chooses a conversation's id: any text, log lines included. What the router says of it ends the line.
LINES: Final = (
    pattern(
        "router_ready",
        " decode instances",
        r"Ready: (?P<prefills>\d+) prefill, (?P<decodes>\d+) decode instances",
        "Ready: 1 prefill, 1 decode instances",
        "vLLM disagg_proxy_multiturn.py",
        ROUTER,
    ),
    pattern(
        "lookup_hit",
        ": cache HIT",
        r"conv=(?P<conversation>.*): cache HIT \(age=(?P<age>[\d.]+)s\)\s*$",
        "conv=wf-7c1: cache HIT (age=6.0s)",
        "disagg_proxy_multiturn.py",
        ROUTER,
    ),
    pattern(
        "lookup_miss",
        ": cache MISS",
        rf"\[{ID}\] conv=(?P<conversation>.*): cache MISS\s*$",
        "[e6b64ea9-987d-4e91-b1ae-e1861e10de84] conv=wf-7c1: cache MISS",
        "disagg_proxy_multiturn.py",
        ROUTER,
    ),
    pattern(
        "lookup_stale",
        ": stale cache entry",
        r"conv=(?P<conversation>.*): stale cache entry \(age=(?P<age>[\d.]+)s > ttl=(?P<ttl>[\d.]+)s\)(?:, discarding)?\s*$",
        "conv=desk-1: stale cache entry (age=463.0s > ttl=450.0s), discarding",
        "disagg_proxy_multiturn.py",
        ROUTER,
    ),
    pattern(
        "handle_sent",
        "cached blocks to P (remote_request_id",
        rf"\[{ID}\] conv=(?P<conversation>.*): sending D's cached blocks to P \(remote_request_id=(?P<handle>[^)\s]{{1,300}})\)\s*$",
        "[179c7f76] conv=wf-7c1: sending D's cached blocks to P (remote_request_id=chatcmpl-e6b64ea9-1832ea24)",
        "disagg_proxy_multiturn.py",
        ROUTER,
    ),
    pattern(
        "handle_stored",
        ": cached D blocks",
        r"conv=(?P<conversation>.*): cached D blocks \(remote_request_id=(?P<handle>[^,)\s]{1,300}), blocks=(?P<blocks>\d+)\)\s*$",
        "conv=wf-7c1: cached D blocks (remote_request_id=chatcmpl-e6b64ea9-1832ea24, blocks=196)",
        "disagg_proxy_multiturn.py",
        ROUTER,
    ),
    pattern(
        "prefill_done",
        " Prefill done in ",
        rf"\[{ID}\] Prefill done in (?P<ms>\d+)ms",
        "[e6b64ea9] Prefill done in 410ms",
        "disagg_proxy_multiturn.py",
        ROUTER,
    ),
    pattern(
        "no_conversation_id",
        "No conversation_id provided",
        rf"\[{ID}\] No conversation_id provided",
        "[a920806f] No conversation_id provided - KV cache reuse disabled for this request.",
        "disagg_proxy_multiturn.py",
        ROUTER,
    ),
    pattern(
        "upstream_call",
        "HTTP Request: POST ",
        r"HTTP Request: POST (?P<url>\S{1,500}) \"HTTP/[\d.]+ (?P<status>\d\d\d)",
        'HTTP Request: POST http://198.51.100.21:8100/v1/chat/completions "HTTP/1.1 200 OK"',
        "httpx",
        ROUTER,
    ),
    pattern(
        "toy_ready",
        " decode clients.",
        r"Initialized (?P<prefills>\d+) prefill clients and (?P<decodes>\d+) decode clients",
        "Initialized 2 prefill clients and 1 decode clients.",
        "toy_proxy_server.py",
        BARE,
    ),
    pattern(
        "router_error",
        "Error occurred in disagg prefill proxy server",
        r"Error occurred in disagg prefill proxy server",
        "Error occurred in disagg prefill proxy server - /chat/completions endpoint",
        "toy_proxy_server.py",
        BARE,
    ),
    pattern(
        "connect_error",
        "All connection attempts failed",
        r"(?:[\w.]+: )?All connection attempts failed",
        "httpx.ConnectError: All connection attempts failed",
        "httpx",
        frozenset({"bare", "proxy"}),
    ),
    pattern(
        "connect_error",
        "for url ",
        r"httpx\.HTTPStatusError: (?:Server|Client) error '(?P<status>\d\d\d)",
        "httpx.HTTPStatusError: Server error '500 Internal Server Error' for url 'http://198.51.100.21:8100/v1/chat/completions'",
        "httpx",
        frozenset({"bare", "proxy"}),
    ),
    pattern(
        "connect_error",
        "httpx.",
        r"(?:httpx|httpcore)\.(?:ConnectError|ConnectTimeout|ReadTimeout|ReadError|RemoteProtocolError|PoolTimeout|WriteError)\b",
        "httpx.ReadTimeout",
        "httpx",
        frozenset({"bare", "proxy"}),
    ),
)
