"""A scenario and everything that was found out about it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.faults.judge import Judgement, classify, judge, logs_of, without
from benchmarks.faults.metrics import Seen, about_faults, alerts_of, exported, installed, within_budget
from benchmarks.faults.run import FACTS, Facts, recorded
from benchmarks.faults.scenario import CALM

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from benchmarks.faults.scenario import Scenario


@dataclass(frozen=True)
class Row:
    """A scenario and everything that was found out about it."""

    scenario: Scenario
    facts: Facts
    whole: Judgement
    stock: Judgement
    installed: Seen
    exported: Seen

    @property
    def missed(self) -> list[str]:
        """Return what is not as expected, in words."""
        scenario, facts = self.scenario, self.facts
        found = [f"all logs: {text}" for text in self.whole.missed]
        found += [f"engine logs: {text}" for text in self.stock.missed]
        if (text := self._alerts_missed()) is not None:
            found.append(f"alerts: {text}")
        if facts.errors != scenario.errors:
            found.append(f"{facts.errors} errors at the client, {scenario.errors} expected")
        if facts.different and not scenario.wrong_text:
            found.append(f"{facts.different} of {facts.compared} answers differ from an honest prefill's")
        return found

    def _alerts_missed(self) -> str | None:
        """Return what is wrong with the alerts: one that accuses an innocent run, none for a fault that has one."""
        expected = self.scenario.expected
        rung = {*self.installed.alerts, *self.exported.alerts}
        if not CALM.isdisjoint({expected.cause, *expected.or_else}):
            return f"{', '.join(false)} fired" if (false := about_faults(self.installed.alerts)) else None
        if expected.alerts is None:
            return None
        due = {name for cause in (expected.cause, *expected.or_else) for name in alerts_of(cause)} | {*expected.alerts}
        return None if not due or due & rung or self.below_budget else f"none of {', '.join(sorted(due))} fired"

    @property
    def below_budget(self) -> bool:
        """Tell whether the fault met too few of the turns for an alert."""
        expected = self.scenario.expected
        if expected.turns is None:
            share = max(self.installed.share(expected.cause), self.exported.share(expected.cause))
            return share > 0 and within_budget(expected.cause, share)
        share = expected.turns / max(self.installed.turns.total(), self.facts.requests, 1)
        return any(within_budget(cause, share) for cause in (expected.cause, *expected.or_else))


def row_of(scenario: Scenario, folder: Path, *, noise: AbstractSet[str] = frozenset()) -> Row:
    """Return what the logs, metrics and facts of a run tell. `noise` are causes that do not count."""
    logs, engine_logs, series = logs_of(folder), logs_of(folder, stock=True), recorded(folder)
    return Row(
        scenario,
        Facts(**json.loads((folder / FACTS).read_text())),
        judge(without(noise, classify(logs)), scenario.expected),
        judge(without(noise, classify(engine_logs)), scenario.expected if logs == engine_logs else scenario.stock),
        installed(series),
        exported(series),
    )
