"""Compare routers on the same mock engines: paired rounds, ratios of medians, one core for the router.

    python -m benchmarks.router.compare --vllm-router PATH --nginx PATH --redis PATH --rounds 5

Each round visits every target in a shuffled order; a ratio is taken within a round, and none is printed from fewer than
five. `vllm-router` is the Rust router from PyPI; nginx is one plain hop to decode, without a prefill call: the floor.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import pairs

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
ROUTER_CORE, LOAD_CORE = "0", "1"
SCRAPED = "kvdiag+scrape"
SCRAPE_S = 0.5


@dataclass(frozen=True)
class Scenario:
    """One kind of load; `mock` are the mock engines' settings."""

    name: str
    mock: dict[str, float]
    load: tuple[str, ...]
    saturating: bool


SCENARIOS = (
    Scenario("saturated-stream", {"chunks": 50, "delay_ms": 0}, ("--conc", "128", "--size", "1000"), saturating=True),
    Scenario("saturated-no-chunks", {"chunks": 0, "delay_ms": 0}, ("--conc", "64", "--size", "1000"), saturating=True),
    Scenario("saturated-200k", {"chunks": 50, "delay_ms": 0}, ("--conc", "32", "--size", "200000"), saturating=True),
    Scenario("ttft-c1", {"chunks": 10, "delay_ms": 5}, ("--conc", "1", "--size", "1000"), saturating=False),
    Scenario("ttft-c1-200k", {"chunks": 10, "delay_ms": 5}, ("--conc", "1", "--size", "200000"), saturating=False),
    Scenario(
        "ttft-c16", {"chunks": 50, "delay_ms": 5}, ("--conc", "64", "--rate", "55", "--size", "1000"), saturating=False
    ),
    Scenario(
        "ttft-c16-200k",
        {"chunks": 50, "delay_ms": 5},
        ("--conc", "64", "--rate", "55", "--size", "200000"),
        saturating=False,
    ),
    Scenario(
        "ttft-c128",
        {"chunks": 50, "delay_ms": 20},
        ("--conc", "400", "--rate", "100", "--size", "1000"),
        saturating=False,
    ),
    Scenario(
        "ttft-c128-200k",
        {"chunks": 50, "delay_ms": 20},
        ("--conc", "400", "--rate", "100", "--size", "200000"),
        saturating=False,
    ),
    Scenario(
        "separate-chunks",
        {"chunks": 50, "delay_ms": 5},
        ("--conc", "400", "--rate", "200", "--size", "1000"),
        saturating=False,
    ),
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def get(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().read()


def wait_for(port: int, path: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        if process.poll() is not None:
            raise SystemExit(f"{process.args!r} ended with {process.returncode}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            get(port, path)
            return
        time.sleep(0.1)
    raise SystemExit(f"{process.args!r} did not answer on port {port}")


@contextlib.contextmanager
def scraping(port: int) -> Iterator[None]:
    """Scrape far more often than Prometheus does."""
    stop = threading.Event()

    def scrape() -> None:
        while not stop.wait(SCRAPE_S):
            get(port, "/metrics")

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class Bench:
    """Mock engines on one core, targets on the other, all up at the same time."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args = args
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.targets: dict[str, tuple[int, int]] = {}
        self.prefill, self.decode = free_port(), free_port()

    def pinned(self, core: str, *command: str) -> list[str]:
        nice = ["nice", "-n", str(self.args.nice)] if self.args.nice else []
        return [*nice, "taskset", "-c", core, *command]

    def spawn(self, core: str, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{len(self.processes)}.log").open("wb")
        process = subprocess.Popen(
            self.pinned(core, *command), stdout=log, stderr=log, env={**os.environ, **environment}
        )
        self.processes.append(process)
        return process

    def start(self) -> None:
        ports = "--p-port", str(self.prefill), "--d-port", str(self.decode)
        mock = self.spawn(LOAD_CORE, sys.executable, str(HERE / "mock_pd.py"), *ports)
        wait_for(self.decode, "/health", mock)
        self.targets["direct"] = self.decode, 0
        self.kvdiag("kvdiag")
        if self.args.redis:
            port = free_port()
            self.spawn(LOAD_CORE, self.args.redis, "--port", str(port), "--save", "", "--dir", str(self.folder))
            self.kvdiag("kvdiag+redis", "--store", "redis", "--store-url", f"redis://127.0.0.1:{port}/0")
        if self.args.scrape:
            self.kvdiag(SCRAPED)
        if self.args.vllm_router:
            self.vllm_router()
        if self.args.example_proxy:
            self.example_proxy()
        if self.args.nginx:
            self.nginx()

    def kvdiag(self, name: str, *more: str) -> None:
        port = free_port()
        engines = "--prefill", f"http://127.0.0.1:{self.prefill}", "--decode", f"http://127.0.0.1:{self.decode}"
        log = str(self.folder / f"{name}.turns.jsonl")
        process = self.spawn(
            ROUTER_CORE,
            *(sys.executable, "-m", "kvdiag", "router", *engines, "--port", str(port), "--turn-log", log, *more),
            KVDIAG_ROUTER__HASH_KEY="bench",
        )
        wait_for(port, "/readyz", process)
        self.targets[name] = port, process.pid

    def vllm_router(self) -> None:
        port, metrics = free_port(), free_port()
        process = self.spawn(
            ROUTER_CORE,
            *(self.args.vllm_router, "--vllm-pd-disaggregation", "--prefill", f"http://127.0.0.1:{self.prefill}"),
            *("--decode", f"http://127.0.0.1:{self.decode}", "--host", "127.0.0.1", "--port", str(port)),
            *("--policy", "round_robin", "--prometheus-port", str(metrics), "--log-level", "error"),
            TOKIO_WORKER_THREADS="1",
        )
        wait_for(port, "/health", process)
        self.targets["vllm-router"] = port, process.pid

    def example_proxy(self) -> None:
        port = free_port()
        options = {"prefiller": self.prefill, "decoder": self.decode}
        engines = [
            part for role, at in options.items() for part in (f"--{role}-host", "127.0.0.1", f"--{role}-port", str(at))
        ]
        listen = ("--host", "127.0.0.1", "--port", str(port))
        process = self.spawn(ROUTER_CORE, sys.executable, self.args.example_proxy, *listen, *engines)
        wait_for(port, "/health", process)
        self.targets["example proxy"] = port, process.pid

    def nginx(self) -> None:
        port = free_port()
        config = self.folder / "nginx.conf"
        config.write_text(
            f"daemon off; worker_processes 1; pid {self.folder}/nginx.pid; error_log {self.folder}/nginx.err;\n"
            "events { worker_connections 4096; }\nhttp { access_log off; client_max_body_size 64m;\n"
            "client_body_buffer_size 1m; keepalive_requests 1000000;\n"
            f"client_body_temp_path {self.folder}/b; proxy_temp_path {self.folder}/p; fastcgi_temp_path {self.folder}/f;\n"
            f"uwsgi_temp_path {self.folder}/u; scgi_temp_path {self.folder}/s;\n"
            f"upstream d {{ server 127.0.0.1:{self.decode}; keepalive 512; keepalive_requests 1000000; }}\n"
            f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://d; proxy_http_version 1.1;\n"
            'proxy_set_header Connection ""; proxy_buffering off; }} }\n}\n'.replace("}}", "}")
        )
        process = self.spawn(
            ROUTER_CORE, self.args.nginx, "-p", str(self.folder), "-c", str(config), "-e", f"{self.folder}/e"
        )
        wait_for(port, "/health", process)
        self.targets["nginx"] = port, process.pid

    def run(self, scenario: Scenario, target: str) -> dict[str, float]:
        port, pid = self.targets[target]
        query = "&".join(f"{key}={value}" for key, value in scenario.mock.items())
        get(self.decode, f"/_set?{query}")
        before, served = pairs.cpu_seconds(pid) if pid else 0.0, json.loads(get(self.decode, "/_stats"))["d"]
        command = self.pinned(LOAD_CORE, sys.executable, str(HERE / "load.py"), "--port", str(port), *scenario.load)
        command += ["--duration", str(self.args.seconds), "--warmup", "1", "--conv-base", str(random.randrange(10**9))]
        with scraping(port) if target == SCRAPED else contextlib.nullcontext():
            result = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        requests = json.loads(get(self.decode, "/_stats"))["d"] - served
        return {
            "rps": result["rps"],
            "ttft_ms": result["ttft_ms"]["p50"] or float("nan"),
            "ttft_p99_ms": result["ttft_ms"]["p99"] or float("nan"),
            "cpu_ms": ((pairs.cpu_seconds(pid) - before) if pid else 0.0) * 1e3 / max(requests, 1),
            "errors": sum(result["errors"].values()),
        }

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


def report(scenario: Scenario, runs: dict[str, list[dict[str, float]]]) -> None:
    print(f"\n## {scenario.name}  ({' '.join(scenario.load)}, {scenario.mock})")
    for target, rounds in runs.items():
        columns = {key: pairs.spread([r[key] for r in rounds]) for key in ("rps", "ttft_ms", "ttft_p99_ms", "cpu_ms")}
        errors = int(sum(r["errors"] for r in rounds))
        print(f"{target:14s}", "  ".join(f"{key} {value}" for key, value in columns.items()), f" errors {errors}")
    base = runs.get("direct")
    for other in runs:
        if other in {"kvdiag", "direct"}:
            continue
        if scenario.saturating:
            print(
                f"kvdiag / {other}: req/s x {pairs.ratio(*[[r['rps'] for r in runs[t]] for t in ('kvdiag', other)])}",
                end="; ",
            )
        elif base is not None:
            added = [
                [r["ttft_ms"] - d["ttft_ms"] for r, d in zip(runs[t], base, strict=True)] for t in ("kvdiag", other)
            ]
            print(f"kvdiag / {other}: added TTFT p50 x {pairs.ratio(*added)}", end="; ")
            tails = [[r["ttft_p99_ms"] for r in runs[t]] for t in ("kvdiag", other)]
            print(f"TTFT p99 x {pairs.ratio(*tails)}", end="; ")
        print(f"CPU x {pairs.ratio(*[[r['cpu_ms'] for r in runs[t]] for t in ('kvdiag', other)])}")


def versions(args: argparse.Namespace) -> str:
    found = [pairs.versions("kvdiag", "uvloop", "httptools", "msgspec", "prometheus-client", "hiredis")]
    if args.nginx:
        found.append(subprocess.run([args.nginx, "-v"], capture_output=True, text=True, check=True).stderr.strip())
    if args.vllm_router:
        python = Path(args.vllm_router).parent / "python"
        code = "import importlib.metadata as m; print('vllm-router', m.version('vllm-router'))"
        found.append(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip())
    return ", ".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-router", help="path of the Rust router's program")
    parser.add_argument("--nginx", help="path of nginx", default=shutil.which("nginx"))
    parser.add_argument("--redis", help="path of redis-server: measures the shared store too")
    parser.add_argument("--scrape", action="store_true", help="measure a router that is scraped meanwhile too")
    parser.add_argument("--example-proxy", help="path of vLLM's example disagg_proxy_multiturn.py")
    parser.add_argument("--rounds", type=int, default=pairs.ENOUGH_PAIRS)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument(
        "--nice", type=int, default=0, help="priority of everything that is measured, on a shared machine"
    )
    parser.add_argument("--only", nargs="*", help="names of scenarios")
    args = parser.parse_args()
    print(f"machine: {pairs.machine()}")
    print(f"versions: {versions(args)}")
    print(f"router on core {ROUTER_CORE}, engines and load on {LOAD_CORE}, nice {args.nice}")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, Path(folder))
        try:
            bench.start()
            for scenario in SCENARIOS:
                if args.only and scenario.name not in args.only:
                    continue
                runs: dict[str, list[dict[str, float]]] = {target: [] for target in bench.targets}
                for _ in range(args.rounds):
                    for target in random.sample(list(bench.targets), len(bench.targets)):
                        runs[target].append(bench.run(scenario, target))
                report(scenario, runs)
        finally:
            bench.stop()
    print(f"\nload average at the end: {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
