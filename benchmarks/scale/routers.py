"""Unit costs of the router and of its shared store, on mock engines."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.pairs import cpu_seconds
from benchmarks.scale.exposition import Exposition
from benchmarks.soak.account import turn_log_lines
from benchmarks.soak.watch import resident_mib

from kvdiag.localstack.process import HOST, Service, free_port, get

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOAD: Final = Path(__file__).parents[1] / "router"
Costs = dict[str, float]
_SECRET: Final = {"KVDIAG_ROUTER__HASH_KEY": "bench"}
ENGINES: Final = (2, 64, 512)
"""Engines behind a router: two sizes to tell what each engine adds to its exposition, and one to check that on."""
BODIES: Final = {"1 KB": 1_000, "80 KB": 80_000}
"""The second is about 20,000 tokens of history."""


@contextmanager
def serving(folder: Path, engines: int, *more: str) -> Iterator[tuple[Service, int]]:
    """Yield a router before so many mock engines, and the port that answers for decode."""
    folder.mkdir(parents=True, exist_ok=True)
    prefill, decode, port = free_port(), free_port(), free_port()
    mock: list[str | Path] = [sys.executable, _LOAD / "mock_pd.py", "--p-port", str(prefill), "--d-port", str(decode)]
    ranks = f"@0-{engines // 2 - 1}" if engines > 2 else ""
    upstreams = ("--prefill", f"http://{HOST}:{prefill}{ranks}", "--decode", f"http://{HOST}:{decode}{ranks}")
    command = [sys.executable, "-m", "kvdiag", "router", "--port", str(port), *upstreams, *more]
    command += ["--turn-log", str(folder / "turns.jsonl")]
    services = [
        Service("engines", mock, folder / "engines.log", decode),
        Service("router", command, folder / "router.log", port, health_path="/readyz", environment=_SECRET),
    ]
    with ExitStack() as unwind:
        for service in services:
            service.start()
            unwind.callback(service.stop)
            service.wait_healthy(60)
        get(decode, "/_set?chunks=50&delay_ms=0")
        yield services[1], decode


def load(router: Service, turns: int, conversations: int, size: int, streams: int = 64) -> None:
    """Send so many turns through the router; raise RuntimeError where one is not answered in full."""
    command = [sys.executable, str(_LOAD / "load.py"), "--port", str(router.port), "--warmup", "0", "--size", str(size)]
    command += ["--conc", str(streams), "--turns", str(turns), "--conversations", str(conversations)]
    result = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    if result["errors"] or result["n"] != turns:
        raise RuntimeError(f"{turns} turns were sent, {result['n']} answered, errors {result['errors']}")


def router_costs(folder: Path) -> Costs:
    """Return CPU, memory, turn log and exposition of one router process."""
    costs: Costs = {}
    for engines in ENGINES:
        with serving(folder / f"{engines}", engines) as (router, _):
            load(router, 10 * engines, engines, 1_000)
            page = Exposition.of(router.port)
        costs |= {f"router, {engines} engines, {key}": value for key, value in page.sizes().items()}
    for name, size in BODIES.items():
        with serving(folder / name.replace(" ", ""), 2) as (router, _):
            costs |= {f"router, {name}, {key}": value for key, value in _turn_costs(router, size).items()}
    log = next((folder / "1KB").glob("turns.jsonl"))
    costs["turn log, bytes a turn"] = log.stat().st_size / turn_log_lines(log.parent)
    return costs


def _turn_costs(router: Service, size: int) -> Costs:
    assert router.pid is not None
    turns, conversations = (8_000, 4_000) if size < 10_000 else (2_000, 1_000)
    load(router, 500, 500, size)
    before, resident = cpu_seconds(router.pid), resident_mib(router.pid)
    load(router, turns, conversations, size)
    return {
        "CPU ms a turn": (cpu_seconds(router.pid) - before) / turns * 1e3,
        "bytes a conversation": (resident_mib(router.pid) - resident) * 2**20 / (conversations - 500),
    }


def redis_costs(folder: Path) -> Costs:
    """Return what a turn and a conversation cost the shared store."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = ["redis-server", "--port", str(port), "--save", "", "--dir", str(folder)]
    redis = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with serving(folder, 2, "--store", "redis", "--store-url", f"redis://{HOST}:{port}/0") as (router, _):
            load(router, 200, 200, 1_000)
            before = _info(port)
            turns, conversations = 4_000, 2_000
            load(router, turns, conversations, 80_000, streams=32)
            after = _info(port)
    finally:
        redis.terminate()
        redis.wait(10)
    rose = {key: after[key] - before[key] for key in after}
    operations = rose["total_commands_processed"] - 1  # the question itself
    return {
        "redis, operations a turn": operations / turns,
        "redis, bytes in a turn": rose["total_net_input_bytes"] / turns,
        "redis, bytes out a turn": rose["total_net_output_bytes"] / turns,
        "redis, bytes a conversation": rose["used_memory"] / (conversations - 200),
        "redis, CPU us an operation": (rose["used_cpu_user"] + rose["used_cpu_sys"]) / operations * 1e6,
    }


def _info(port: int) -> dict[str, float]:
    raw = subprocess.run(["redis-cli", "-p", str(port), "INFO"], check=True, capture_output=True, text=True).stdout
    wanted = {"total_commands_processed", "total_net_input_bytes", "total_net_output_bytes", "used_memory"}
    wanted |= {"used_cpu_user", "used_cpu_sys"}
    pairs = (line.strip().split(":", 1) for line in raw.splitlines() if ":" in line)
    return {key: float(value) for key, value in pairs if key in wanted}
