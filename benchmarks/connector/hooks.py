"""What the connector's own code costs: microseconds per request and hook, milliseconds per digest.

    python -m benchmarks.connector.hooks [--json]

No vLLM needed. Targets: hooks below 20 us a request (digest aside), digest below 1 ms for 32k tokens.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from kvdiag.connector.digest import PrefixDigest, Salt
from kvdiag.connector.outbox import Outbox
from kvdiag.connector.plan import Layout
from kvdiag.connector.scheduler import SchedulerSide
from kvdiag.connector.settings import Settings
from kvdiag.connector.worker import WorkerSide

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 16
NOTHING = Salt()
ROUNDS = 7
LENGTHS = (4096, 32_768)


def best_us(function: Callable[[int], object], number: int) -> float:
    """Return microseconds per call: CPU time, the best of some rounds."""
    rounds = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        for index in range(number):
            function(index)
        rounds.append((time.thread_time() - start) / number * 1e6)
    return min(rounds)


def settings(*, verify: bool) -> Settings:
    return Settings(
        role="prefill",
        engine_id="engine",
        bidirectional=True,
        decode_ttl_s=480.0,
        recompute_threshold=64,
        failure_policy="fail",
        recomputes_failed_reads=False,
        read_timeout_s=30.0,
        peer_addresses=False,
        verify=verify,
        event_log=None,
        traces_endpoint=None,
    )


def side(outbox: Outbox, *, verify: bool) -> SchedulerSide:
    layout = Layout(block_size=BLOCK, divisible=True, block_bytes=4096, blocks=1000)
    return SchedulerSide(settings(verify=verify), layout, outbox, can_read_back=True)


def request(name: str, params: dict[str, Any], tokens: list[int]) -> Any:  # noqa: ANN401 - stands in for vLLM's Request
    return SimpleNamespace(
        request_id=name,
        kv_transfer_params=params,
        num_prompt_tokens=len(tokens),
        num_computed_tokens=0,
        prompt_token_ids=tokens,
        prompt_embeds=None,
        arrival_time=time.time(),
    )


def handle(name: str, prefix: str | None, tokens: int) -> dict[str, Any]:
    context = {"v": 1, "ttl_s": 480.0, "issued_at": time.time(), "notes": True, "conversation": "c" * 32, "turn": 3}
    return {
        "do_remote_decode": True,
        "remote_block_ids": [list(range(tokens // BLOCK + 1))],
        "remote_engine_id": "engine-d",
        "remote_request_id": name,
        "remote_host": "10.0.0.1",
        "remote_port": 5600,
        "remote_num_tokens": tokens,
        "kvdiag": context | ({"prefix": prefix} if prefix else {}),
    }


HOOKS = ("admit", "offer", "admitted", "received", "finished", "released")


def hooks_us(tokens: int, number: int = 300) -> dict[str, float]:
    """Return microseconds of each hook of the scheduler's side in one prefill request's life, nothing compared."""
    prompt = list(range(tokens))
    rounds = [_round(f"{repeat}", prompt, number) for repeat in range(ROUNDS)]
    return {hook: min(costs[hook] for costs in rounds) for hook in HOOKS}


def _round(label: str, prompt: list[int], number: int) -> dict[str, float]:
    outbox = Outbox()
    scheduler = side(outbox, verify=False)
    names = [f"r{label}-{index}" for index in range(number)]
    sent = msgspec.msgpack.encode(handle("a", None, len(prompt)))
    asked: list[Any] = []

    def arrive(i: int) -> None:
        asked.append(request(names[i], msgspec.msgpack.decode(sent) | {"remote_request_id": names[i]}, prompt))

    def receive(index: int) -> None:
        scheduler.absorb([["moved", names[index], 1 << 20, 0.01, 0.001, 8]])
        scheduler.received([names[index]])

    def release(index: int) -> None:
        scheduler.absorb([["released", names[index], "read"]])
        scheduler.released([names[index]])

    steps: dict[str, Callable[[int], object]] = {
        "admit": lambda i: scheduler.admit(asked[i]),
        "offer": lambda i: scheduler.offer(asked[i], lambda: NOTHING),
        "admitted": lambda i: scheduler.admitted(asked[i], len(prompt)),
        "received": receive,
        "finished": lambda i: scheduler.finished(asked[i], [[1, 2]], {}, list, lambda: NOTHING),
        "released": release,
    }
    costs: dict[str, list[float]] = {hook: [] for hook in steps}
    for index in range(number):
        arrive(index)
        for hook, step in steps.items():
            start = time.thread_time()
            step(index)
            costs[hook].append((time.thread_time() - start) * 1e6)
        outbox.drain()
    return {hook: statistics.median(spent) for hook, spent in costs.items()}


def worker_step(outbox: Outbox) -> Callable[[int], object]:
    worker = WorkerSide(outbox, leads=True, read_timeout_s=30.0)

    def run(_index: int) -> None:
        worker.overdue(())
        worker.settle(set())
        worker.sift({})
        worker.notified((), lambda _: True)
        worker.received(())
        worker.let_go(())
        outbox.drain()

    return run


def digests(tokens: int) -> dict[str, float]:
    generator = random.Random(0)
    held = [generator.randrange(150_000) for _ in range(tokens)]
    prompt = [*held, *range(64)]
    made = PrefixDigest.of(held, tokens - 512, BLOCK, NOTHING)
    return {
        f"digest on decode, {tokens} tokens, ms": best_us(
            lambda _: PrefixDigest.of(held, tokens - 512, BLOCK, NOTHING), 20
        )
        / 1e3,
        f"comparison on prefill, {tokens} tokens, ms": best_us(lambda _: made.agreement(prompt, NOTHING), 20) / 1e3,
        f"handle growth, {tokens} tokens, bytes": float(len(made.encode())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    for tokens in LENGTHS:
        costs = hooks_us(tokens)
        figures |= {f"{hook}, {tokens} tokens, us a request": cost for hook, cost in costs.items()}
        figures[f"all hooks, {tokens} tokens, us a request"] = sum(costs.values())
    figures |= {
        "worker hooks, us a step": best_us(worker_step(Outbox()), 5000),
    }
    for tokens in LENGTHS:
        figures |= digests(tokens)
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:55} {value:10.3f}")


if __name__ == "__main__":
    main()
