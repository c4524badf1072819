"""`kvdiag export` on stock logs that grow, as a deployment without our connector or router writes them."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from kvdiag.cli.export import command, count
from kvdiag.errors import InputError
from kvdiag.exporters.observed import TurnCounter

if TYPE_CHECKING:
    from collections.abc import Callable

CASE = Path(__file__).parents[1] / "cases" / "declined-inside-the-five-second-margin"
LOGS = ("prefill.log", "decode.log", "proxy.log")


def growing(folder: Path) -> Callable[[float], None]:
    """Return a pause that lets the logs grow to their end, waits for turns to settle, then presses Ctrl-C."""
    paused = 0

    def pause(_seconds: float) -> None:
        nonlocal paused
        paused += 1
        if paused == 1:
            for name in LOGS:
                text = (CASE / name).read_bytes()
                with (folder / name).open("ab") as file:
                    file.write(text[len((folder / name).read_bytes()) :])
        if paused == 40:
            raise KeyboardInterrupt

    return pause


def start(folder: Path) -> None:
    """Write each log's first lines: the engines and the router have started, no turn was served."""
    for name in LOGS:
        lines = (CASE / name).read_bytes().splitlines(keepends=True)
        (folder / name).write_bytes(b"".join(lines[:4]))


def test_turns_that_stock_logs_tell_of_are_counted_by_cause(tmp_path: Path) -> None:
    start(tmp_path)
    registry = CollectorRegistry()
    ticks = iter(range(10_000))
    counter = TurnCounter(registry, settle_s=15)
    count([str(tmp_path)], counter, clock=lambda: float(next(ticks)), pause=growing(tmp_path))
    expired = {"cause": "expired_remote_read", "detail": "failed_request", "turn": "2-4"}
    assert registry.get_sample_value("kvdiag_turns_total", expired) == 1
    lost = {"cause": "expired_remote_read", "detail": "failed_request"}
    assert registry.get_sample_value("kvdiag_lost_tokens_total", lost) == 2848
    total = sum(s.value for f in registry.collect() for s in f.samples if s.name == "kvdiag_turns_total")
    assert total == 7


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_history_is_not_counted_and_the_endpoint_serves(tmp_path: Path, end: signal.Signals) -> None:
    """The whole command, ended by Ctrl-C, or as a service manager ends it."""
    for name in LOGS:
        (tmp_path / name).write_bytes((CASE / name).read_bytes())
    arguments = [sys.executable, "-m", "kvdiag", "export", str(tmp_path), "--listen", "127.0.0.1:0", "--settle", "0"]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"http://\S+", process.stderr.readline())
            assert found
            time.sleep(2)
            with urllib.request.urlopen(found[0]) as answer:
                text = answer.read().decode()
        finally:
            process.send_signal(end)
        assert process.wait(30) == 0
    assert 'kvdiag_turns_total{cause="expired_remote_read",detail="failed_request",turn="2-4"} 0.0' in text
    assert "_created" not in text


@pytest.mark.parametrize("listen", ["9464", "localhost:port", "h:70000", ":1"])
def test_an_address_that_is_none_is_refused(listen: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="write HOST:PORT"):
        CliRunner().invoke(command, [str(tmp_path), "--listen", listen], catch_exceptions=False)


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"127.0.0.1:{port} cannot be listened on .* choose another"):
            CliRunner().invoke(command, [str(tmp_path), "--listen", f"127.0.0.1:{port}"], catch_exceptions=False)
