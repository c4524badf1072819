"""A real Prometheus, and deployments whose metrics come from the real exporters and travel by remote write."""

from __future__ import annotations

import json
import random
import socket
import struct
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kvdiag import runbooks
from kvdiag.catalogue import METRICS, TRANSFER_BUCKETS
from kvdiag.causes import CAUSES, DIRECTIONS
from kvdiag.dashboards import files
from kvdiag.dashboards.settings import Settings
from kvdiag.events import PROMPT_BUCKETS, TURN_BUCKETS
from kvdiag.exporters.prometheus import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Scenario = Literal["healthy", "fault", "idle"]
SCENARIOS: Final[tuple[Scenario, ...]] = ("healthy", "fault", "idle")
STEP_S: Final = 60
STEPS: Final = 75
FAULT_FROM: Final = 35
IDLE_FROM: Final = 60
"""Idle series never change: their last quarter of an hour says it all."""
BLOCKS: Final = 10_000
BLOCK_BYTES: Final = 2 << 20

Labels = tuple[tuple[str, str], ...]
Samples = dict[Labels, list[tuple[int, float]]]


@pytest.fixture(scope="session")
def documents() -> dict[str, dict[str, Any]]:
    """Every dashboard, by path, as it would be written now."""
    return files.documents(Settings(), {name: runbooks.page(name).text for name in runbooks.names()})


class Server:
    """A Prometheus of its own, with rules loaded."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        pages = {name: runbooks.page(name).text for name in runbooks.names()}
        (directory / "kvdiag.rules.yaml").write_text(files.texts(Settings(), pages)["kvdiag.rules.yaml"])
        config = directory / "prometheus.yaml"
        config.write_text(
            "rule_files: [kvdiag.rules.yaml]\nstorage: {tsdb: {out_of_order_time_window: 12h}}\nscrape_configs: []\n"
        )
        self._log = (directory / "log").open("w")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={self.url.removeprefix('http://')}",
                "--web.enable-remote-write-receiver",
                "--log.level=warn",
            ],
            stdout=self._log,
            stderr=self._log,
        )
        self._wait()

    def _wait(self) -> None:
        for _ in range(600):
            if self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.url}/-/ready"):
                    return
            except OSError:
                time.sleep(0.05)
        self.close()
        raise RuntimeError(f"prometheus did not start: {Path(self._log.name).read_text()}")

    def query(self, expr: str, at: float) -> list[dict[str, Any]]:
        """Answer an instant query; raises ValueError with Prometheus' words where the query is wrong."""
        url = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expr, 'time': at})}"
        try:
            with urllib.request.urlopen(url) as answer:
                result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(f"{json.load(error)['error']} in {expr}") from None
        return result

    def get(self, path: str) -> Any:  # noqa: ANN401 - JSON
        with urllib.request.urlopen(self.url + path) as answer:
            return json.load(answer)["data"]

    def push(self, samples: Samples) -> None:
        """Send samples by remote write, an hour of all series at a time: the order that Prometheus wants."""
        last = max(ts for values in samples.values() for ts, _ in values)
        first = min(ts for values in samples.values() for ts, _ in values)
        for start in range(first, last + 1, 3_600_000):
            chunk = {
                labels: [(ts, value) for ts, value in values if start <= ts < start + 3_600_000]
                for labels, values in samples.items()
            }
            request = urllib.request.Request(
                f"{self.url}/api/v1/write",
                _snappy(_write_request(chunk)),
                {"content-encoding": "snappy", "content-type": "application/x-protobuf"},
            )
            with urllib.request.urlopen(request):
                pass

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _write_request(samples: Samples) -> bytes:
    """Return Prometheus' WriteRequest: timeseries = 1 {labels = 1 {name = 1, value = 2}, samples = 2 {value = 1, timestamp = 2}}."""
    series: list[bytes] = []
    for labels, values in samples.items():
        head = b"".join(_field(1, _field(1, k.encode()) + _field(2, v.encode())) for k, v in labels)
        body = b"".join(_field(2, b"\x09" + struct.pack("<d", value) + b"\x10" + _varint(ts)) for ts, value in values)
        if body:
            series.append(_field(1, head + body))
    return b"".join(series)


def _snappy(data: bytes) -> bytes:
    """Wrap as snappy that compresses nothing: literal chunks only."""
    chunks = [data[start : start + 65536] for start in range(0, len(data), 65536)]
    return _varint(len(data)) + b"".join(b"\xf4" + struct.pack("<H", len(chunk) - 1) + chunk for chunk in chunks)


@dataclass
class Target:
    """One scraped process."""

    job: str
    instance: str
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    _series: dict[tuple[str, ...], Labels] = field(default_factory=dict)

    def scrape(self, ts: int, samples: Samples) -> None:
        for family in self.registry.collect():
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    samples[self._labels(sample.name, sample.labels)].append((ts, float(sample.value)))

    def _labels(self, name: str, labels: dict[str, str]) -> Labels:
        key = (name, *labels.values())
        if key not in self._series:
            full = {"__name__": name, "job": self.job, "instance": self.instance, **labels}
            self._series[key] = tuple(sorted(full.items()))
        return self._series[key]


class Router(Target):
    """Router metrics of the real exporter, moved as traffic would."""

    def __init__(self, scenario: Scenario, chance: random.Random) -> None:
        super().__init__(f"{scenario}-router", "router:8000")
        self.metrics = Metrics("router", self.registry)
        self.chance = chance
        self.cpu = Counter("process_cpu_seconds_total", "CPU.", registry=self.registry)
        self.memory = Gauge("process_resident_memory_bytes", "Memory.", registry=self.registry)
        self.files = Gauge("process_open_fds", "Files.", registry=self.registry)
        self.metrics.gauge("kvdiag_build_info", "0.1.0").set(1)
        self.metrics.gauge("kvdiag_router_store_up").set(1)
        self.metrics.gauge("kvdiag_router_handle_ttl_seconds").set(470)
        self.memory.set(90 << 20)
        self.files.set(60)

    def turn(self, cause: str, detail: str, *, bad: bool = False) -> None:
        """Count one turn; `bad` turns are as slow as a full recompute."""
        m, chance = self.metrics, self.chance
        bucket = "1" if cause == "first_turn" else chance.choice(TURN_BUCKETS[1:])
        length = 2000 + 4000 * TURN_BUCKETS.index(bucket)
        reused = cause in {"remote_hit", "local_hit", "below_threshold"}
        arm = "holdout" if not reused and cause != "first_turn" and not bad else "reuse"
        slow = 0.12 + length / 6000 * chance.uniform(0.8, 1.3)
        ttft = slow * (1.1 if bad else 1) if not reused else 0.25 * chance.uniform(0.7, 1.6)
        m.counter("kvdiag_turns_total", cause, detail, bucket).inc()
        m.histogram("kvdiag_turn_ttft_seconds", cause, bucket, arm).observe(ttft)
        if bucket != "1":
            prompt = PROMPT_BUCKETS[TURN_BUCKETS.index(bucket)]
            m.histogram("kvdiag_turn_ttft_by_prompt_seconds", prompt, "yes" if reused else "no", arm).observe(ttft)
            m.histogram("kvdiag_inter_turn_gap_seconds").observe(chance.lognormvariate(2.2, 1.1))
        m.histogram("kvdiag_turn_seconds").observe(ttft + 4)
        m.histogram("kvdiag_router_seconds").observe(chance.lognormvariate(-7, 0.5))
        m.histogram("kvdiag_prefill_seconds").observe(ttft * 0.7)
        m.histogram("kvdiag_handoff_seconds").observe(ttft * 0.25)
        m.counter("kvdiag_prompt_tokens_total", "computed").inc(400 if reused else length)
        if reused:
            m.counter("kvdiag_prompt_tokens_total", "remote" if cause == "remote_hit" else "local").inc(length - 400)
        elif cause != "first_turn":
            m.counter("kvdiag_prompt_tokens_total", "lost").inc(length * 0.8)
        self.cpu.inc(0.05)


class Engine(Target):
    """Connector metrics of the real exporter beside vLLM's own."""

    def __init__(self, scenario: Scenario, role: Literal["prefill", "decode"], number: int) -> None:
        super().__init__(f"{scenario}-{role}", f"{role}-{number}:8{1 if role == 'prefill' else 2}0{number}")
        self.role = role
        self.engine_id = f"id-of-{role}-{number}"
        constant = {"model_name": "qwen3-32b", "engine": "0"}
        self.metrics = Metrics("connector", self.registry, constant=constant)
        self.metrics.gauge("kvdiag_build_info", "0.1.0").set(1)
        info = {"role": role, "bidirectional": "true", "ttl_seconds": "480", "vllm": "0.32.0", "nixl": "1.5.1"}
        info["engine_id"] = self.engine_id
        values = [info.get(label, "x") for label in METRICS["kvdiag_connector_info"].labels]
        self.metrics.gauge("kvdiag_connector_info", *values).set(1)
        self.metrics.gauge("kvdiag_kv_cache_blocks").set(BLOCKS)
        if role == "decode":
            self.metrics.gauge("kvdiag_retention_ttl_seconds").set(480)
        names = tuple(constant)

        def gauge(name: str, *labels: str) -> Gauge:
            return Gauge(name, name, names + labels, registry=self.registry)

        values = list(constant.values())
        self.running = gauge("vllm:num_requests_running").labels(*values)
        self.waiting = gauge("vllm:num_requests_waiting").labels(*values)
        self.usage = gauge("vllm:kv_cache_usage_perc").labels(*values)
        self.reason = gauge("vllm:num_requests_waiting_by_reason", "reason")
        self.reason.labels(*values, "deferred").set(0)
        self.preempted = Counter("vllm:num_preemptions", "p", names, registry=self.registry).labels(*values)
        self.xfer = Histogram(
            "vllm:nixl_xfer_time_seconds", "x", names, registry=self.registry, buckets=TRANSFER_BUCKETS
        ).labels(*values)
        self.bytes = Histogram("vllm:nixl_bytes_transferred", "b", names, registry=self.registry).labels(*values)
        self.failed = Counter("vllm:nixl_num_failed_transfers", "f", names, registry=self.registry).labels(*values)
        self.expired = Counter("vllm:nixl_num_kv_expired_reqs", "e", names, registry=self.registry).labels(*values)
        self.queue = Histogram("vllm:request_queue_time_seconds", "q", names, registry=self.registry).labels(*values)
        self.ttft = Histogram("vllm:time_to_first_token_seconds", "t", names, registry=self.registry).labels(*values)

    def read(self, direction: str, peer: str, tokens: int, seconds: float) -> None:
        m, size = self.metrics, tokens * 131072
        m.counter("kvdiag_transfer_bytes_total", direction).inc(size)
        m.histogram("kvdiag_transfer_seconds", direction).observe(seconds)
        m.histogram("kvdiag_transfer_post_seconds", direction).observe(seconds / 12)
        m.histogram("kvdiag_read_wait_seconds", direction).observe(seconds * 1.2)
        m.counter("kvdiag_transfer_descriptors_total", direction).inc(tokens / 16 * 64)
        for name, amount in (("transfers", 1), ("transfer_bytes", size), ("transfer_seconds", seconds)):
            m.counter(f"kvdiag_peer_{name}_total", direction, peer).inc(amount)
        m.counter("kvdiag_peer_transfer_failures_total", direction, peer).inc(0)
        self.xfer.observe(seconds)
        self.bytes.observe(size)
        self.ttft.observe(seconds * 3)
        self.queue.observe(seconds / 2)


class Deployment:
    """A router, two prefill and two decode engines."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.chance = random.Random(scenario)
        self.router = Router(scenario, self.chance)
        self.prefill = [Engine(scenario, "prefill", n) for n in range(2)]
        self.decode = [Engine(scenario, "decode", n) for n in range(2)]
        self.targets: list[Target] = [self.router, *self.prefill, *self.decode]

    def step(self, number: int) -> None:
        """Move one minute on."""
        if self.scenario == "idle":
            return
        faulty = self.scenario == "fault" and number >= FAULT_FROM
        turns = int(40 + 15 * self.chance.random())
        for _ in range(turns):
            self._turn(faulty=faulty)
        self._hold(faulty=faulty)
        if number % 3 == 0:
            self.prefill[0].metrics.histogram("kvdiag_handshake_seconds").observe(0.4)
        if faulty:
            self._break(number)

    def _turn(self, *, faulty: bool) -> None:
        chance = self.chance
        lookups = self.router.metrics
        cause, detail = "first_turn", ""
        if chance.random() > 0.15:
            cause = chance.choices(["remote_hit", "local_hit", "below_threshold"], [84, 12, 4])[0]
        held_out = cause != "first_turn" and chance.random() < 0.06
        if cause != "first_turn" and not held_out and chance.random() < (0.55 if faulty else 0.03):
            fault = chance.choices(["expired_remote_read", "missing_metadata", "slow_transfer", ""], [50, 25, 15, 10])[
                0
            ]
            cause = fault or chance.choice([c.name for c in CAUSES.values() if c.kind == "fault"])
            detail = chance.choice(["", *CAUSES[cause].details])
            self.router.turn(cause, detail, bad=True)
            self.prefill[0].metrics.counter("kvdiag_lost_tokens_total", cause, detail).inc(5000)
        elif held_out:
            self.router.turn("missing_metadata", "holdout")
            lookups.counter("kvdiag_router_lookups_total", "holdout").inc()
            return
        else:
            self.router.turn(cause, detail)
        known = {"first_turn": "first_turn", "missing_metadata": detail or "stale"}
        lookups.counter("kvdiag_router_lookups_total", known.get(cause, "hit")).inc()
        self._move(cause, faulty=faulty)

    def _fail(self, cause: str, detail: str) -> None:
        self.router.turn(cause, detail, bad=True)
        self.prefill[0].metrics.counter("kvdiag_lost_tokens_total", cause, detail).inc(5000)

    def _move(self, cause: str, *, faulty: bool) -> None:
        chance = self.chance
        prefill, decode = chance.choice(self.prefill), chance.choice(self.decode)
        slow = 30 if faulty and prefill is self.prefill[1] else 1
        decode.read("prefill_to_decode", prefill.engine_id, 4000, 0.03 * chance.lognormvariate(0, 0.3) * slow)
        if cause == "remote_hit":
            prefill.read("decode_to_prefill", decode.engine_id, 9000, 0.06 * chance.lognormvariate(0, 0.3) * slow)
            prefill.metrics.counter("kvdiag_response_tokens_total", "yes").inc(280)
            prefill.metrics.counter("kvdiag_response_tokens_total", "no").inc(25)
            prefill.metrics.counter("kvdiag_lost_tokens_total", "prefix_diverged", "in_response").inc(25)
        release = "read" if cause == "remote_hit" else chance.choice(["expired", "notified"])
        held = chance.uniform(5, 60) if release == "read" else 480
        decode.metrics.counter("kvdiag_retained_byte_seconds_total", release).inc(held * 4000 * 131072)
        decode.metrics.histogram("kvdiag_retention_seconds", release).observe(held)
        if release == "expired":
            decode.metrics.counter("kvdiag_expiries_total", "idle_ended").inc()
            decode.expired.inc()

    def _hold(self, *, faulty: bool) -> None:
        for number, engine in enumerate(self.decode):
            share = self.chance.uniform(0.4, 0.5) if faulty and number == 0 else self.chance.uniform(0.1, 0.2)
            engine.metrics.gauge("kvdiag_retained_blocks").set(share * BLOCKS)
            engine.metrics.gauge("kvdiag_retained_bytes").set(share * BLOCKS * BLOCK_BYTES)
            engine.metrics.gauge("kvdiag_retained_requests").set(int(share * 200))
            engine.usage.set(min(1.0, share + 0.45))
            engine.waiting.set(self.chance.randint(4, 12) if faulty and number == 0 else 0)
        for engine in self.prefill:
            engine.usage.set(self.chance.uniform(0.2, 0.4))
        self.router.metrics.gauge("kvdiag_router_handles").set(self.chance.randint(180, 220))

    def _break(self, number: int) -> None:
        faults = [cause for cause in CAUSES.values() if cause.kind == "fault"]
        for place, cause in enumerate(faults):
            if (place + number) % 3 == 0:
                self._fail(cause.name, self.chance.choice(list(cause.details) or [""]))
        reader = self.prefill[1]
        for direction in DIRECTIONS:
            reader.metrics.counter("kvdiag_transfer_failures_total", direction).inc()
        reader.metrics.counter(
            "kvdiag_peer_transfer_failures_total", "decode_to_prefill", "id of an engine that is gone"
        ).inc()
        reader.failed.inc()
        self.decode[0].metrics.counter("kvdiag_expiries_total", "read_after_release").inc(0.2)
        self.prefill[0].metrics.counter("kvdiag_expiries_total", "read_declined").inc(4)
        self.prefill[0].metrics.counter("kvdiag_expiries_total", "lease_lapsed").inc()
        self.decode[0].preempted.inc()
        self.router.metrics.counter("kvdiag_router_retries_total", "prefill_timeout").inc()
        self.router.metrics.counter("kvdiag_router_upstream_errors_total", "prefill").inc()


@dataclass(frozen=True)
class World:
    """A Prometheus that holds all deployments' last 75 minutes."""

    server: Server
    now: float

    def query(self, expr: str, scenario: str) -> list[dict[str, Any]]:
        """Answer a panel's query for one deployment, as Grafana would ask with the default variables."""
        return self.server.query(interpolate(expr, scenario), self.now)


def interpolate(expr: str, scenario: str) -> str:
    """Replace Grafana's variables."""
    for name, value in {
        "$__rate_interval": "4m",
        "$__range": "1h",
        "$job": f"{scenario}-.*",
        "$prefill": ".*",
        "$decode": ".*",
        "$model": ".*",
    }.items():
        expr = expr.replace(name, value)
    return expr


def _alerts(samples: Samples, ts: int) -> None:
    """The fault deployment's alerts as Prometheus would store them after minutes that a test does not wait."""
    for name, severity, cause in (
        ("KvdiagSuspectKv", "page", "suspect_kv"),
        ("KvdiagExpiredRemoteRead", "ticket", "expired_remote_read"),
        ("KvdiagTtftBurnFast", "page", ""),
    ):
        labels = {"__name__": "ALERTS", "alertname": name, "alertstate": "firing", "severity": severity}
        labels |= {"cause": cause} if cause else {}
        samples[tuple(sorted(labels.items()))].append((ts, 1.0))


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    now = int(time.time())
    samples: Samples = defaultdict(list)
    for scenario in SCENARIOS:
        deployment = Deployment(scenario)
        for number in range(IDLE_FROM if scenario == "idle" else 0, STEPS):
            deployment.step(number)
            ts = (now - (STEPS - 1 - number) * STEP_S) * 1000
            for target in deployment.targets:
                target.scrape(ts, samples)
            if scenario == "fault" and number >= FAULT_FROM:
                _alerts(samples, ts)
    server = Server(tmp_path_factory.mktemp("prometheus"))
    try:
        server.push(samples)
        yield World(server, now)
    finally:
        server.close()


@pytest.fixture(scope="session")
def ask(world: World) -> Callable[[str, str], list[dict[str, Any]]]:
    return world.query
