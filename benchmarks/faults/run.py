"""Runs one scenario and notes what there is to judge: logs, metrics, answers."""

from __future__ import annotations

import functools
import json
import secrets
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.faults.clients import ask
from benchmarks.faults.journal import Journal
from benchmarks.faults.recording import Recorder, Series
from benchmarks.faults.rig import Rig

from kvdiag.localstack import Service, free_port
from kvdiag.localstack.process import HOST

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.faults.clients import Exchange, Messages
    from benchmarks.faults.scenario import Scenario

FACTS: Final = "facts.json"
RECORDED: Final = "metrics.json"
EXPORT: Final = "kvdiag-export"
"""The job of `kvdiag export`, which follows the logs."""
SETTLE_S: Final = 2.0
"""After this long without news the exporter counts a turn."""
INTERVAL_S: Final = 10.5
"""Engines sum up every ten seconds."""


@dataclass(frozen=True)
class Facts:
    """What was seen beside logs and metrics."""

    requests: int
    errors: int
    compared: int
    """Answers held against an honest prefill's."""
    different: int
    seconds: float


def run(scenario: Scenario, prefill: Service, decode: Service, folder: Path, *, settle_s: float = INTERVAL_S) -> Facts:
    """Run a scenario on these engines; its logs, metrics and facts lie in `folder` afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    journals = [Journal.of(engine) for engine in (prefill, decode)]
    began = time.monotonic()
    recorder = Recorder()
    # Engines are watched before the first scrape: what they counted earlier is nobody's rise.
    with Rig(prefill, decode, folder, scenario.router, recorder) as rig, recorder:
        rig.follow(_exporter(prefill, decode, folder), EXPORT)
        scenario.drive(rig)
        # Engines sum up what they did, and the exporter counts what the sums tell.
        time.sleep(settle_s)
    for journal in journals:
        journal.cut(folder)
    (folder / RECORDED).write_text(json.dumps([one.as_json() for one in recorder.series()]))
    # Only now: the honest prefills must not show in the scenario's logs.
    facts = _facts(rig.exchanges, prefill, time.monotonic() - began)
    (folder / FACTS).write_text(json.dumps(asdict(facts), indent=1))
    return facts


def _exporter(prefill: Service, decode: Service, folder: Path) -> Service:
    port = free_port()
    command = [sys.executable, "-m", "kvdiag", "export", "--listen", f"{HOST}:{port}", "--settle", f"{SETTLE_S}"]
    paths = [prefill.log.parent, decode.log.parent, folder]
    return Service("export", [*command, *paths], folder / "export.log", port, health_path="/metrics")


def _facts(exchanges: list[Exchange], prefill: Service, seconds: float) -> Facts:
    answered = [exchange for exchange in exchanges if not exchange.failed]
    honest = functools.cache(
        lambda messages, parameters: _honest(prefill, json.loads(messages), json.loads(parameters))
    )
    return Facts(
        requests=len(exchanges),
        errors=len(exchanges) - len(answered),
        compared=len(answered),
        different=sum(
            honest(json.dumps(one.messages), json.dumps(one.parameters)) != one.answer.text for one in answered
        ),
        seconds=round(seconds, 1),
    )


def _honest(engine: Service, messages: Messages, parameters: dict[str, object]) -> str:
    """Return the answer of one engine that computes the whole prompt by itself."""
    salted = parameters | {"stream": False, "cache_salt": secrets.token_hex(8)}
    return ask(engine.port, messages, None, **salted).answer.text


def recorded(folder: Path) -> list[Series]:
    """Return the metrics of a scenario."""
    return [Series(**one) for one in json.loads((folder / RECORDED).read_text())]
