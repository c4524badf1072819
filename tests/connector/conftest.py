"""A scheduler's side with clocks that stand still, and requests as vLLM makes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from kvdiag.connector.digest import PrefixDigest, Salt
from kvdiag.connector.outbox import Item, Outbox
from kvdiag.connector.plan import Layout
from kvdiag.connector.scheduler import SchedulerSide
from kvdiag.connector.settings import Settings

BLOCK = 16
HELD = list(range(1000))
"""What decode holds in these tests: 900 tokens of prompt, 100 of response."""


@dataclass
class FakeRequest:
    request_id: str
    kv_transfer_params: Any
    prompt_token_ids: list[int] | None
    arrival_time: float = 1000.0
    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    prompt_embeds: object = None

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.prompt_token_ids or [])


def settings(**changes: Any) -> Settings:  # noqa: ANN401 - any field
    values: dict[str, Any] = {
        "role": "prefill",
        "engine_id": "engine-p",
        "bidirectional": True,
        "decode_ttl_s": 480.0,
        "recompute_threshold": 64,
        "failure_policy": "fail",
        "recomputes_failed_reads": False,
        "read_timeout_s": 30.0,
        "peer_addresses": False,
        "verify": True,
        "event_log": None,
        "traces_endpoint": None,
    }
    return Settings(**values | changes)


def handle_params(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any field
    """Return what decode's connector gave for HELD, as a router sends it to prefill."""
    context = {
        "v": 1,
        "prefix": PrefixDigest.of(HELD, 900, BLOCK, Salt()).encode(),
        "prompt_tokens": 900,
        "ttl_s": 480.0,
        "issued_at": 990.0,
        "notes": True,
        "conversation": "c0ffee",
        "turn": 2,
        "lookup": "hit",
    } | changes.pop("kvdiag", {})
    return {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_block_ids": [list(range(63))],
        "remote_engine_id": "engine-d",
        "remote_request_id": "chatcmpl-old-00000001",
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "remote_num_tokens": 1000,
        "kvdiag": context,
    } | changes


@dataclass
class Bench:
    """Drives a scheduler's side as the facade does."""

    side: SchedulerSide
    outbox: Outbox
    clock: list[float] = field(default_factory=lambda: [0.0, 1000.0])

    def ask(self, request: FakeRequest, local: int = 0) -> int:
        """Return how many tokens upstream would claim."""
        self.side.offer(request, Salt)
        params = request.kv_transfer_params or {}
        self.side.matched(request, local)
        if not params.get("do_remote_decode") or not params.get("remote_block_ids"):
            return 0
        count = min(params["remote_num_tokens"], request.num_prompt_tokens) - local
        return count if count >= 64 else 0

    def admit(self, params: Any, prompt: list[int], *, local: int = 0, name: str = "turn") -> tuple[FakeRequest, int]:  # noqa: ANN401
        request = FakeRequest(name, params, prompt)
        self.side.admit(request)
        external = self.ask(request, local)
        self.side.admitted(request, external)
        return request, external

    def items(self) -> list[Item]:
        return self.outbox.drain()

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [item[1] for item in self.items() if item[0] == "event" and item[1]["kind"] == kind]


def bench(*, can_read_back: bool = True, may_notify_strangers: bool = True, **changes: Any) -> Bench:  # noqa: ANN401
    outbox, clock = Outbox(), [0.0, 1000.0]
    side = SchedulerSide(
        settings(**changes),
        Layout(block_size=BLOCK, divisible=True, block_bytes=4096, blocks=1000),
        outbox,
        can_read_back=can_read_back,
        may_notify_strangers=may_notify_strangers,
        clock=lambda: clock[0],
        wall=lambda: clock[1],
    )
    assert outbox.drain() == [["cache", 1000]]
    return Bench(side, outbox, clock)


@pytest.fixture
def prefill() -> Bench:
    return bench()


@pytest.fixture
def decode() -> Bench:
    return bench(role="decode", engine_id="engine-d")
