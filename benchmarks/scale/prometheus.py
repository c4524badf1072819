"""What a scraped series costs a real Prometheus: some hundred simulated engines that serve a real engine's page."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from benchmarks.pairs import cpu_seconds
from benchmarks.soak.watch import resident_mib

from kvdiag.localstack.process import HOST, Service, free_port, get

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.scale.exposition import Exposition

INTERVAL_S: Final = 5.0
SCRAPES: Final = 8
_RULES: Final = Path(__file__).parents[2] / "dashboards" / "kvdiag.rules.yaml"
_SAMPLE: Final = re.compile(r"^([^#\s][^\n]*) (\S+)$", re.MULTILINE)


def variants(page: str, number: int = 8) -> list[bytes]:
    """Return the page at so many moments: every value moves, as those of a busy engine do."""
    chance = random.Random(1)

    def moved(match: re.Match[str], moment: int) -> str:
        return f"{match[1]} {float(match[2]) + moment * chance.randint(1, 1000)}"

    return [_SAMPLE.sub(partial(moved, moment=moment), page).encode() for moment in range(number)]


@contextmanager
def simulated(page: str) -> Iterator[int]:
    """Yield the port of a server that answers every target with the page, at another moment each time."""
    pages, asked = variants(page), iter(range(1 << 60))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages[next(asked) // 100 % len(pages)]
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
            del format, args

    server = ThreadingHTTPServer((HOST, 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def prometheus_costs(page: Exposition, targets: int, folder: Path) -> dict[str, float]:
    """Return CPU a sample and memory a series of a Prometheus that scrapes so many targets, kvdiag's rules loaded."""
    folder.mkdir(parents=True, exist_ok=True)
    with simulated(page.text) as port:
        prometheus = _service(folder, port, targets)
        prometheus.start()
        try:
            prometheus.wait_healthy(60)
            assert prometheus.pid is not None
            return _costs(prometheus, targets, resident_mib(prometheus.pid))
        finally:
            prometheus.stop()


def _costs(prometheus: Service, targets: int, idle_mib: float) -> dict[str, float]:
    assert prometheus.pid is not None
    # Every series has been created by the end of the second scrape; creation is not what a scrape costs.
    time.sleep(2 * INTERVAL_S)
    before, began = cpu_seconds(prometheus.pid), time.monotonic()
    appended = _one(prometheus, "prometheus_tsdb_head_samples_appended_total")
    time.sleep(SCRAPES * INTERVAL_S)
    samples = _one(prometheus, "prometheus_tsdb_head_samples_appended_total") - appended
    used, seconds = cpu_seconds(prometheus.pid) - before, time.monotonic() - began
    series = _one(prometheus, "prometheus_tsdb_head_series")
    up = _query(prometheus, 'count(up{job="engines"} == 1)')
    if up != targets:
        raise RuntimeError(f"{up:.0f} of {targets} simulated engines were scraped; the machine is too busy")
    return {
        "prometheus, targets": targets,
        "prometheus, series": series,
        "prometheus, samples a second": samples / seconds,
        "prometheus, CPU us a sample": used / samples * 1e6,
        "prometheus, bytes a series": (resident_mib(prometheus.pid) - idle_mib) * 2**20 / series,
        "prometheus, rules, ms an evaluation": _one(prometheus, "prometheus_rule_group_last_duration_seconds") * 1e3,
    }


def _one(prometheus: Service, name: str) -> float:
    page = get(prometheus.port, "/metrics")[1].decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE))


def _query(prometheus: Service, query: str) -> float:
    answer = json.loads(get(prometheus.port, f"/api/v1/query?query={quote(query)}")[1])
    result = answer["data"]["result"]
    return float(result[0]["value"][1]) if result else 0.0


def _service(folder: Path, port: int, targets: int) -> Service:
    listen, config = free_port(), folder / "prometheus.yml"
    job = {
        "job_name": "engines",
        "scrape_interval": f"{INTERVAL_S:.0f}s",
        "static_configs": [
            {"targets": [f"{HOST}:{port}"], "labels": {"instance": f"engine-{number}"}} for number in range(targets)
        ],
    }
    document = {"rule_files": [str(_RULES)], "scrape_configs": [job], "global": {"evaluation_interval": "30s"}}
    config.write_text(json.dumps(document))
    command = [
        *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"),
        *(f"--web.listen-address={HOST}:{listen}", "--log.level=warn"),
    ]
    return Service("prometheus", command, folder / "prometheus.log", listen, health_path="/-/ready")
