"""One TTL on a fresh pair: drive the agents, watch decode, ask kvdiag what it makes of the logs."""

from __future__ import annotations

import json
import math
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from benchmarks.capacity.arrivals import Crowd

from kvdiag.localstack import EngineOptions, LocalStack, Service, StackOptions, router_service
from kvdiag.localstack.agent import Agent
from kvdiag.localstack.process import get

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BLOCKS: Final = 512
"""Decode's whole KV cache, blocks of 128 tokens."""
BYTES: Final = BLOCKS * 128 * 4096
"""The same: 4 KiB a token."""
DRAIN_S: Final = 20.0
_WATCHED: Final = ("kvdiag_retained_bytes", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


@dataclass(frozen=True)
class Trial:
    """What one TTL led to. Seconds, bytes, counts."""

    ttl_s: int
    turns: int
    unanswered: int
    later: int
    reused: int
    ttft_p50_s: float
    ttft_p95_s: float
    retained_bytes_mean: float
    retained_bytes_max: float
    waiting_mean: float
    """Requests in decode's queue."""
    waiting_max: float
    tuned_s: int | None
    """decoder_kv_blocks_ttl by `kvdiag tune` on this run's logs."""
    tuned_within_s: int | None
    """The same with half of decode's cache given as --memory."""


@dataclass
class Watch:
    """Decode's gauges, looked at once a second."""

    decode: Service
    seen: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self._over.wait(1.0):
            page = get(self.decode.port, "/metrics", timeout=10)[1].decode()
            for name in _WATCHED:
                values = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE)
                self.seen[name].append(sum(map(float, values)))

    def stop(self) -> None:
        self._over.set()


def run(ttl_s: int, duration_s: float, folder: Path, progress: Callable[[str], None]) -> Trial:
    """Return the trial of this TTL."""
    small = ("--num-gpu-blocks-override", str(BLOCKS))
    options = StackOptions(
        prefill=EngineOptions(prefix_caching=False, decode_ttl_s=ttl_s),
        decode=EngineOptions(decode_ttl_s=ttl_s, arguments=small),
        router_arguments=None,
    )
    with LocalStack(folder, options, progress=progress) as running:
        _warm_up(running)
        router = router_service(folder, running.prefills, running.decodes, ())
        router.start()
        try:
            router.wait_healthy(60)
            asked, watch = _drive(running, router, duration_s)
        finally:
            router.kill()
        return _trial(ttl_s, asked, watch, folder)


def _warm_up(running: LocalStack) -> None:
    router = router_service(running.folder / "warm-up", running.prefills, running.decodes, ())
    router.start()
    try:
        router.wait_healthy(60)
        agent = Agent(router.port, "warm-up", stream=True)
        for _ in range(3):
            agent.say("warm up the engines with a prompt that spans some blocks; " * 40)
    finally:
        router.stop()


def _drive(running: LocalStack, router: Service, duration_s: float) -> tuple[Crowd, Watch]:
    crowd, watch = Crowd(router.port, time.monotonic() + duration_s), Watch(running.decodes[0])
    watching = threading.Thread(target=watch.run)
    watching.start()
    try:
        threads = crowd.run(duration_s)
        time.sleep(max(0.0, crowd.until - time.monotonic()))
        deadline = time.monotonic() + DRAIN_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
    finally:
        watch.stop()
        watching.join()
    # Whoever still waits is told so by the router's end, and counts as unanswered.
    router.stop(grace=5)
    for thread in threads:
        thread.join(10)
    return crowd, watch


def _trial(ttl_s: int, crowd: Crowd, watch: Watch, folder: Path) -> Trial:
    records = [json.loads(line) for line in (folder / "turns.jsonl").read_bytes().splitlines()]
    later = [record for record in records if record["turn"] > 1]
    # A turn that was never answered is slower than every other one, however soon it was refused.
    seconds = sorted(turn.ttft_s if turn.answered else math.inf for turn in crowd.asked)
    retained, waiting = watch.seen["kvdiag_retained_bytes"], watch.seen["vllm:num_requests_waiting"]
    return Trial(
        ttl_s=ttl_s,
        turns=len(crowd.asked),
        unanswered=sum(not turn.answered for turn in crowd.asked),
        later=len(later),
        reused=sum(record["cause"] == "remote_hit" for record in later),
        ttft_p50_s=round(_quantile(seconds, 0.5), 3),
        ttft_p95_s=round(_quantile(seconds, 0.95), 3),
        retained_bytes_mean=statistics.mean(retained),
        retained_bytes_max=max(retained),
        waiting_mean=round(statistics.mean(waiting), 2),
        waiting_max=max(waiting),
        tuned_s=_tuned(folder),
        tuned_within_s=_tuned(folder, "--memory", str(BYTES // 2)),
    )


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[math.ceil(share * len(ordered)) - 1]


def _tuned(folder: Path, *more: str) -> int | None:
    names = ("turns.jsonl", "prefill.log", "decode.log", "prefill-events.jsonl", "decode-events.jsonl")
    logs = [str(folder / name) for name in names]
    command = [sys.executable, "-m", "kvdiag", "tune", *logs, "--format", "json", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    advice: dict[str, Any] = {item["setting"]: item for item in json.loads(done.stdout)["advice"]}
    value: int | None = advice["decoder_kv_blocks_ttl"]["value"]
    return value
