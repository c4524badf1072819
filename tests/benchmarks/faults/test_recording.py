"""Scrapes become time series that hold what a scenario itself added."""

from __future__ import annotations

import http.server
import threading
from typing import TYPE_CHECKING

import pytest
from benchmarks.faults.recording import Recorder, rises

from kvdiag.localstack import Service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = """# TYPE kvdiag_turns_total counter
kvdiag_turns_total{cause="remote_hit"} %d
kvdiag_turns_total{cause="client"} 0
# TYPE kvdiag_router_handles gauge
kvdiag_router_handles 3
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info 1
"""


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5, 7, 9], [0, 2, 4]),
        ([5, None, 6], [0, None, 1]),
        ([5, 7, 1, 2], [0, 2, 3, 4]),
        ([None, 3, 4], [None, 3, 4]),
    ],
    ids=["what was there before does not count", "a scrape failed", "a restart", "born meanwhile"],
)
def test_a_counter_holds_what_it_added(values: list[float | None], expected: list[float | None]) -> None:
    assert rises(values) == expected


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Serve a counter that rises with every scrape."""

    class Handler(http.server.BaseHTTPRequestHandler):
        scrapes = 0

        def do_GET(self) -> None:
            Handler.scrapes += 1
            body = (PAGE % Handler.scrapes).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Service("router", [], tmp_path / "router.log", server.server_port)
        server.shutdown()
        thread.join()


def test_a_service_is_scraped_until_the_end(service: Service) -> None:
    with Recorder() as recorder:
        recorder.watch("kvdiag-router", service)
    found = {one.name: one for one in recorder.series()}
    assert found.keys() == {"kvdiag_turns_total", "kvdiag_router_handles"}
    assert found["kvdiag_turns_total"].labels == {"cause": "remote_hit", "job": "kvdiag-router", "instance": "router"}
    assert found["kvdiag_turns_total"].counter
    assert not found["kvdiag_router_handles"].counter
    assert found["kvdiag_router_handles"].values[-1] == 3
    assert found["kvdiag_router_handles"].calm == 0


def test_what_was_scraped_before_the_fault_is_told_apart(service: Service) -> None:
    recorder = Recorder()
    recorder.watch("kvdiag-router", service)
    with recorder:
        pass
    recorder.take_for_usual()
    [calm] = {one.calm for one in recorder.series()}
    assert calm == len(recorder.series()[0].values) > 0
