"""What one real engine exposes and logs, and what kvdiag needs to read logs."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.scale.exposition import Exposition
from benchmarks.scale.routers import load, serving

from kvdiag.localstack import EngineOptions, LocalStack, StackOptions
from kvdiag.localstack.agent import Agent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONVERSATIONS, TURNS = 4, 5


def engine_costs(folder: Path, progress: Callable[[str], None]) -> tuple[dict[str, float], Exposition]:
    """Return the size of a real prefill engine's page, of its event log a turn, and the page."""
    options = StackOptions(prefill=EngineOptions(prefix_caching=False), router_arguments=())
    with LocalStack(folder, options, progress=progress) as running:
        assert running.router is not None
        for number in range(CONVERSATIONS):
            agent = Agent(running.router.port, f"agent-{number}", stream=True)
            for _ in range(TURNS):
                if agent.say("read the file, edit the line, run the test, report the result; " * 30).status != 200:
                    raise RuntimeError(f"a turn failed; read {folder}")
        pages = {
            role: Exposition.of(service.port)
            for role, service in (("prefill", running.prefills[0]), ("decode", running.decodes[0]))
        }
    turns = CONVERSATIONS * TURNS
    costs = {f"{role} page, {key}": value for role, page in pages.items() for key, value in page.sizes().items()}
    costs |= {f"{role} page, kvdiag series": page.series("kvdiag_") for role, page in pages.items()}
    for role in pages:
        costs[f"{role} events, bytes a turn"] = (folder / f"{role}-events.jsonl").stat().st_size / turns
    return costs, pages["prefill"]


def reading_costs(folder: Path) -> dict[str, float]:
    """Return the CPU seconds that `kvdiag classify` takes for a gigabyte: of an engine's log, and of a router's turn log."""
    engine = folder / "prefill.log"
    generate = [sys.executable, "-m", "benchmarks.classify.generate", str(engine), "200"]
    subprocess.run(generate, check=True, stdout=subprocess.DEVNULL)
    costs = {"classify, CPU s a GB of an engine's log": _seconds_per_gb(engine)}
    engine.unlink()
    with serving(folder / "router", 2) as (router, _):
        load(router, 10_000, 2_000, 1_000)
    whole = folder / "whole.jsonl"
    whole.write_bytes(b"".join(_renamed((folder / "router" / "turns.jsonl").read_bytes(), copy) for copy in range(10)))
    costs["classify, CPU s a GB of a turn log"] = _seconds_per_gb(whole)
    return costs


def _renamed(log: bytes, copy: int) -> bytes:
    """Return a turn log of other requests and conversations."""
    for key in (b'"request_id":"', b'"conversation":"'):
        log = log.replace(key, key + b"%x" % copy)
    return log


def _seconds_per_gb(log: Path) -> float:
    command = [sys.executable, "-m", "kvdiag", "classify", str(log), "--format", "json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in {0, 1, 3}:
        raise RuntimeError(f"kvdiag classify {log.name}: {done.stderr.strip()}")
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return used / (log.stat().st_size / 1e9)
