"""What recorded metrics say of a scenario: turns by cause, records lost, alerts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from benchmarks.faults.alerts import fired
from benchmarks.faults.run import EXPORT

from kvdiag.causes import OUTCOMES
from kvdiag.dashboards.alerts import BUDGETS, alerts
from kvdiag.dashboards.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.faults.recording import Series

_OF_TELEMETRY: Final = "KvdiagEventsDropped"
_OF_CAUSE: Final = {one.name: one.cause for one in alerts(Settings()) if one.cause and one.name != _OF_TELEMETRY}
_BUDGETS: Final = {budget.cause: budget.share for budget in BUDGETS}


@dataclass(frozen=True)
class Seen:
    """What one source of metrics shows."""

    turns: Counter[str] = field(default_factory=Counter)
    """By cause, or cause and detail in one word."""
    dropped: int = 0
    """Records of turns and events that could not be written."""
    alerts: tuple[str, ...] = ()

    @property
    def faults(self) -> list[str]:
        """Return the turns that did not end well, and what telemetry lost."""
        found = [f"{name} {count}" for name, count in self.turns.items() if name.partition("/")[0] not in OUTCOMES]
        return [*found, f"dropped records {self.dropped}"] if self.dropped else found

    def share(self, cause: str) -> float:
        """Return the share of turns that ended with a cause."""
        count = sum(count for name, count in self.turns.items() if name.partition("/")[0] == cause)
        return count / max(self.turns.total(), 1)


def within_budget(cause: str, share: float) -> bool:
    """Tell whether a cause has a budget, and so small a share of turns that its alert must be quiet."""
    return share <= _BUDGETS.get(cause, -1.0)


def alerts_of(cause: str) -> list[str]:
    """Return the alerts that are about this cause."""
    return [name for name, about in _OF_CAUSE.items() if about == cause]


def about_faults(names: Iterable[str]) -> list[str]:
    """Return those of some alerts that accuse a cause."""
    return [name for name in names if name in _OF_CAUSE]


def installed(series: list[Series]) -> Seen:
    """Return what router and connectors say, beside vLLM's own metrics."""
    return _seen([one for one in series if one.labels["job"] != EXPORT])


def exported(series: list[Series]) -> Seen:
    """Return what `kvdiag export` reads from the logs, beside vLLM's own metrics."""
    return _seen([one for one in series if one.labels["job"] == EXPORT or one.name.startswith("vllm:")])


def _seen(series: list[Series]) -> Seen:
    turns: Counter[str] = Counter()
    for one in series:
        if one.name == "kvdiag_turns_total" and one.rise:
            detail = one.labels.get("detail")
            turns[one.labels["cause"] + (f"/{detail}" if detail else "")] += round(one.rise)
    dropped = sum(one.rise for one in series if one.name == "kvdiag_dropped_events_total")
    return Seen(turns, round(dropped), tuple(fired(series)) if series else ())
