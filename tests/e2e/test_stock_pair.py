"""A stock pair without a router: reading back is off on decode, leases are short. What the doctor and the exporter see."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from kvdiag.cli import main
from kvdiag.localstack import EngineOptions, LocalStack, StackOptions, free_port
from kvdiag.localstack.talk import main as talk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LEASE_S = 5
PATIENCE_S = 120.0
"""How long an engine may take to log, and the exporter to believe it, on a busy machine."""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    options = StackOptions(
        prefill=EngineOptions(connector="stock", lease_s=LEASE_S),
        decode=EngineOptions(connector="stock", bidirectional=False),
        router_arguments=None,
    )
    with LocalStack(tmp_path_factory.mktemp("faulty"), options) as running:
        yield running


def diagnosed(stack: LocalStack, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    """Return the doctor's findings; the first contact of two engines fails on a machine that is too busy for it."""
    urls = ["--prefill", stack.prefills[0].url, "--decode", stack.decodes[0].url]
    for _ in range(3):
        with pytest.raises(SystemExit) as ended:
            main(["doctor", *urls, "--format", "json"])
        assert ended.value.code == 1
        found = {check["check"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
        if not found["reuse"]["seen"].startswith("the hand-off"):
            break
    return found


def test_the_broken_link_of_a_stock_pair_is_named(faulty: LocalStack, capsys: pytest.CaptureFixture[str]) -> None:
    found = diagnosed(faulty, capsys)
    assert found["reuse"]["state"] == "problem"
    assert found["reuse"]["seen"] == "decode's answer carried no handle"
    assert "decode's kv_connector_extra_config" in found["reuse"]["remedy"]
    assert found["connector"]["seen"] == "prefill: stock NIXL, decode: stock NIXL"
    assert found["kv_layout"]["state"] == "ok"
    assert found["bidirectional"]["state"] == "not evaluated"


@dataclass
class Exporter:
    """A running `kvdiag export`."""

    port: int

    def handoffs(self) -> float:
        """Return how many turns it has counted as expired hand-offs."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            text = answer.read().decode()
        counts = re.findall(r'^kvdiag_turns_total{cause="expired_handoff".*} (\S+)$', text, re.MULTILINE)
        assert counts, "the series is there before anything happens"
        return sum(map(float, counts))

    def wait_for(self, count: float) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.handoffs() < count and time.monotonic() < deadline:
            time.sleep(0.5)
        assert self.handoffs() == count


@pytest.fixture
def exporter(faulty: LocalStack) -> Iterator[Exporter]:
    port = free_port()
    command = [sys.executable, "-m", "kvdiag", "export", *map(str, logs(faulty))]
    with subprocess.Popen(
        [*command, "--listen", f"127.0.0.1:{port}", "--settle", "1"], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert "metrics on" in process.stderr.readline()
        yield Exporter(port)
        process.send_signal(signal.SIGINT)


def logs(stack: LocalStack) -> list[Path]:
    return [service.log for service in (*stack.prefills, *stack.decodes)]


def abandon(stack: LocalStack) -> None:
    """Let a lease lapse, and give prefill a reason to look at its leases."""
    urls = (stack.prefills[0].url, stack.decodes[0].url)
    CliRunner().invoke(talk, [*urls, "--turns", "1", "--abandons"], catch_exceptions=False)
    time.sleep(LEASE_S + 1)
    CliRunner().invoke(talk, [*urls, "--turns", "1"], catch_exceptions=False)


def test_the_exporter_counts_what_a_stock_engine_logs_across_a_rotation(faulty: LocalStack, exporter: Exporter) -> None:
    before = exporter.handoffs()
    abandon(faulty)
    exporter.wait_for(before + 1)
    log = faulty.prefills[0].log
    shutil.copy(log, f"{log}.1")  # what logrotate's copytruncate does to a program that keeps its file open
    with log.open("r+b") as file:
        file.truncate()
    abandon(faulty)
    exporter.wait_for(before + 2)
