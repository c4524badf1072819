#!/usr/bin/env python3
"""Draw the README's pictures of the dashboards from a real run on this machine, about six minutes: `scripts/boards.py`.

Four agents work with a pair on CPU through the router. After some minutes they begin to pause for longer than decode keeps
blocks, and one of them forgets its name. Rules are the shipped ones, with their waiting times cut to seconds.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from kvdiag.dashboards import rules
from kvdiag.dashboards.settings import Settings
from kvdiag.localstack import EngineOptions, LocalStack, StackOptions
from kvdiag.localstack.agent import Agent

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
BOARDS = {"boards/overview": "overview", "boards/transfers": "transfers", "runbooks/expired_remote_read": "runbook"}
OBJECTIVE_S = 1.0
HEALTHY_S, BROKEN_S = 120.0, 100.0
AGENTS = 4
TTL_S, PAUSE_S, LONG_PAUSE_S = 20, 1.0, 16.0
TURNS = 6
WORDS = "open the file, read the function, edit the line, run the test and report the result; "


def quick_rules(folder: Path) -> Path:
    """Write the rules so that a run of minutes can show what they say."""
    document = rules.rule_file(Settings(ttft_objective=OBJECTIVE_S))
    for group in document["groups"]:
        group["interval"] = "2s"
        for rule in group["rules"]:
            if "alert" in rule:
                rule["for"] = "10s"
    (folder / "kvdiag.rules.yaml").write_text(rules.to_yaml(document))
    return folder / "kvdiag.rules.yaml"


def work(port: int, number: int, broken: threading.Event, over: threading.Event) -> None:
    """Hold one conversation after the other."""
    for conversation in itertools.count():
        agent = Agent(port, f"agent-{number}-{conversation}", stream=True, parameters={"max_tokens": 48})
        for turn in range(TURNS):
            if over.is_set():
                return
            if number == 0 and broken.is_set():
                agent.conversation = None
            agent.say(f"{number} {conversation} {turn}: {WORDS * 30}")
            over.wait(LONG_PAUSE_S if broken.is_set() else PAUSE_S)


def drive(port: int) -> None:
    """Let the agents work, well and badly."""
    broken, over = threading.Event(), threading.Event()
    agents = [threading.Thread(target=work, args=(port, number, broken, over)) for number in range(AGENTS)]
    for agent in agents:
        agent.start()
        time.sleep(1)
    time.sleep(HEALTHY_S)
    broken.set()
    time.sleep(BROKEN_S)
    over.set()
    for agent in agents:
        agent.join()


def draw(prometheus: str, began: float, folder: Path) -> None:
    """Let Grafana's components draw what Prometheus has."""
    now = time.time()
    shot = [sys.executable, str(ROOT / "tests/dashboards/viewer/shot.py"), "--prometheus", prometheus]
    shot += ["--to", str(int(now)), "--hours", str((now - began) / 3600), "--step", "2", "--rate-interval", "30s"]
    boards = [str(ROOT / "dashboards" / f"{board}.json") for board in BOARDS]
    done = subprocess.run([*shot, "--out", str(folder), *boards], check=True, capture_output=True, text=True)
    for line, image in zip(done.stdout.splitlines(), BOARDS.values(), strict=True):
        shutil.copy(json.loads(line)["picture"], IMAGES / f"{image}.png")


def main() -> None:
    """Run, drive, draw."""
    options = EngineOptions(prefix_caching=False, decode_ttl_s=TTL_S, max_model_len=16384)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stack = StackOptions(
            prefill=options,
            decode=options,
            router_arguments=("--handle-ttl", "120", "--no-derive"),
            prometheus=True,
            rules=(quick_rules(folder),),
            model="small",
        )
        with LocalStack(folder / "stack", stack, progress=lambda text: print(text, file=sys.stderr)) as running:
            assert running.router is not None  # noqa: S101 - the options above start both
            assert running.prometheus is not None  # noqa: S101 - likewise
            began = time.time()
            drive(running.router.port)
            draw(running.prometheus.url, began, folder)


if __name__ == "__main__":
    main()
