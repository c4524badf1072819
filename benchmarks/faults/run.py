"""Runs one scenario and notes what there is to judge: logs, counters, answers."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from benchmarks.faults.clients import ask
from benchmarks.faults.journal import Journal
from benchmarks.faults.rig import Rig
from benchmarks.faults.scrape import Counters, rose, scrape

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.faults.clients import Exchange
    from benchmarks.faults.scenario import Scenario

    from kvdiag.localstack import Service

FACTS = "facts.json"
SETTLE_S = 1.5
"""Turn and event logs are written behind the scenes."""
INTERVAL_S = 10.5
"""Engines sum up every ten seconds; a scenario must not find its predecessor's sums in its logs."""


@dataclass(frozen=True)
class Facts:
    """What was seen beside the logs."""

    requests: int
    errors: int
    compared: int
    """Answers held against an honest prefill's."""
    different: int
    seconds: float
    router: Counters
    engines: Counters


def run(scenario: Scenario, prefill: Service, decode: Service, folder: Path) -> Facts:
    """Run a scenario on these engines; its logs and facts lie in `folder` afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    engines = (prefill, decode)
    journals = [Journal.of(engine) for engine in engines]
    before = [scrape(engine) for engine in engines]
    began = time.monotonic()
    with Rig(prefill, decode, folder, scenario.router) as rig:
        scenario.drive(rig)
        seconds = time.monotonic() - began
        time.sleep(SETTLE_S)
        router: Counters = {}
        for one in rig.routers:
            for name, value in scrape(one).items():
                router[name] = router.get(name, 0.0) + value
    over = time.monotonic()
    for journal in journals:
        journal.cut(folder)
    after = [scrape(engine) for engine in engines]
    engine_counters: Counters = {}
    for role, first, last in zip(("prefill", "decode"), before, after, strict=True):
        engine_counters |= {f"{role}: {name}": value for name, value in rose(first, last).items()}
    # Only now: the honest prefills must not show in the scenario's logs.
    answered = [exchange for exchange in rig.exchanges if not exchange.failed]
    different = sum(not is_honest(exchange, prefill) for exchange in answered)
    facts = Facts(
        requests=len(rig.exchanges),
        errors=len(rig.exchanges) - len(answered),
        compared=len(answered),
        different=different,
        seconds=round(seconds, 1),
        router=rose({}, router),
        engines=engine_counters,
    )
    (folder / FACTS).write_text(json.dumps(asdict(facts), indent=1))
    time.sleep(max(0.0, over + INTERVAL_S - time.monotonic()))
    return facts


def is_honest(exchange: Exchange, engine: Service) -> bool:
    """Return whether one engine, computing the whole prompt by itself, answers the same."""
    parameters = exchange.parameters | {"stream": False, "cache_salt": secrets.token_hex(8)}
    honest = ask(engine.port, exchange.messages, None, **parameters)
    return honest.answer.text == exchange.answer.text
