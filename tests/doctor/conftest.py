"""Engines and a router that answer over real HTTP, each fault of theirs a switch."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass
class Fake:
    """One service. `pages` are GET answers by path, `answer` makes POST answers; both may be changed while it runs."""

    pages: dict[str, str | int] = field(default_factory=dict)
    answer: Callable[[str, dict[str, Any], dict[str, str]], tuple[int, str]] = lambda _path, _body, _headers: (
        404,
        "{}",
    )
    date: str | None = None
    asked: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    fake: ClassVar[Fake]
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        page = self.fake.pages.get(self.path, 404)
        self._send(page if isinstance(page, int) else 200, page if isinstance(page, str) else "{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.fake.asked.append((self.path, body, headers))
        self._send(*self.fake.answer(self.path, body, headers))

    def date_time_string(self, timestamp: float | None = None) -> str:
        return self.fake.date or super().date_time_string(timestamp)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def serve() -> Iterator[Callable[[Fake], Fake]]:
    """Start fakes; they end with the test."""
    servers: list[ThreadingHTTPServer] = []

    def start(fake: Fake) -> Fake:
        handler = type("Bound", (Handler,), {"fake": fake})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        fake.url = f"http://127.0.0.1:{server.server_address[1]}"
        return fake

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


INFO = (
    'kvdiag_connector_info{{role="{role}",bidirectional="true",ttl_seconds="480",recompute_threshold="64",'
    'failure_policy="fail",block_size="16",engine_id="e-{role}",vllm="0.32.0",nixl="1.5.1",verify="on"}} 1\n'
)


@dataclass
class Engine(Fake):
    """A vLLM engine that holds and reads KV as the real one says it does."""

    role: str = "prefill"
    connector: str | None = "kvdiag"
    bidirectional: bool = True
    streams_handles: bool = True
    cause: str | None = "remote_hit"
    """What kvdiag's connector answers to a turn with a handle; None as a stock connector, which says nothing."""
    status: int = 200
    """Of the answer to a turn with a handle."""
    hand_off_status: int = 200
    """Of decode's answer to what prefill handed off."""
    read_bytes: float = 0.0
    silent: bool = False
    """Takes a handle, reads nothing and says nothing."""

    def __post_init__(self) -> None:
        self.answer = self._answer
        self.pages |= {
            "/version": '{"version":"0.32.0"}',
            "/v1/models": '{"data":[{"id":"tiny"}]}',
        }
        self.refresh()

    def refresh(self) -> None:
        page = 'vllm:num_requests_running{engine="0"} 0\nvllm:cache_config_info{block_size="16",cache_dtype="auto"} 1\n'
        if self.connector:
            page += f"vllm:nixl_bytes_transferred_sum {self.read_bytes}\nvllm:nixl_num_failed_transfers_total 0\n"
        if self.connector == "kvdiag":
            page += INFO.format(role=self.role)
        self.pages["/metrics"] = page

    def _answer(self, path: str, body: dict[str, Any], _headers: dict[str, str]) -> tuple[int, str]:
        params = body.get("kv_transfer_params") or {}
        with_handle = params.get("do_remote_decode") and params.get("remote_block_ids")
        if with_handle and self.status != 200:
            return self.status, '{"error":{"message":"KV load failure"}}'
        if self.role == "decode" and self.hand_off_status != 200:
            return self.hand_off_status, '{"error":{"message":"Internal server error"}}'
        if with_handle and self.cause in {"remote_hit", None} and not self.silent:
            self.read_bytes += 1000
            self.refresh()
        answer: dict[str, Any] = {"choices": [self._choice(path, body)]}
        returned = self._returned(params, with_handle=bool(with_handle))
        if returned and (self.streams_handles or not body.get("stream")):
            answer["kv_transfer_params"] = returned
        text = json.dumps(answer)
        return 200, f"data: {text}\n\ndata: [DONE]\n\n" if body.get("stream") else text

    def _choice(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if "chat" in path:
            return {"message": {"content": "hello"}}
        prompt = body["prompt"] if isinstance(body["prompt"], list) else list(body["prompt"].encode())
        return {"text": "x", "token_ids": [7] * body["max_tokens"], "prompt_token_ids": prompt}

    def _returned(self, params: dict[str, Any], *, with_handle: bool) -> dict[str, Any]:
        if not self.connector or not params or (with_handle and self.silent):
            return {}
        if self.role == "decode" and not self.bidirectional:
            return {}
        handle = {"remote_engine_id": "e", "remote_block_ids": [[1, 2]], "remote_host": "127.0.0.1", "remote_port": 1}
        if with_handle and self.cause:
            handle["kvdiag"] = {"v": 1, "cause": self.cause}
        return handle


@dataclass
class Router(Fake):
    """A router of ours, as far as its metrics tell."""

    cause: str = "remote_hit"
    detail: str = ""
    ttl: float = 470.0
    store_up: float = 1.0
    turns: int = 0
    more_traffic: bool = False

    def __post_init__(self) -> None:
        self.answer = self._answer
        self.refresh()

    def refresh(self) -> None:
        rows = f'kvdiag_turns_total{{cause="first_turn",detail="",turn="1"}} {min(self.turns, 1)}\n'
        rows += (
            f'kvdiag_turns_total{{cause="{self.cause}",detail="{self.detail}",turn="2-4"}} {max(self.turns - 1, 0)}\n'
        )
        if self.more_traffic:
            rows += f'kvdiag_turns_total{{cause="client",detail="",turn="2-4"}} {self.turns}\n'
        rows += f"kvdiag_router_handle_ttl_seconds {self.ttl}\nkvdiag_router_store_up {self.store_up}\n"
        self.pages["/metrics"] = rows

    def _answer(self, _path: str, body: dict[str, Any], _headers: dict[str, str]) -> tuple[int, str]:
        self.turns += 1
        self.refresh()
        prompt = body["prompt"] if isinstance(body["prompt"], list) else list(body["prompt"].encode())
        return 200, json.dumps({"choices": [{"text": "answer", "token_ids": [7], "prompt_token_ids": prompt}]})
