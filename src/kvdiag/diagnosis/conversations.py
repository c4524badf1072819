"""What a router's log tells of one conversation: for each turn a hit, or why there was no handle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from kvdiag.diagnosis.ids import spellings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvdiag.diagnosis.report import Evidence

EventKind = Literal["hit", "miss", "stale", "stored", "anonymous"]

# The example proxy's default; its GET /health evicts older entries without a line.
_ROUTER_TTL_S: Final = 450.0
# Stamps are whole seconds.
_SLACK_S: Final = 2.0


class RouterEvent(NamedTuple):
    """One line of a router about a conversation. `era` names the router process: (log, start-up number)."""

    kind: EventKind
    stamp: float | None
    era: tuple[str, int]
    evidence: Evidence
    turn: str | None = None
    handle: str | None = None
    ttl_s: float | None = None
    age_s: float | None = None
    """How old the handle was, by the router's own word."""


class Outcome(NamedTuple):
    """The look-up of one turn. `number` counts the turns of the conversation that were seen."""

    turn: str
    number: int
    result: str
    evidence: list[Evidence]
    certain: bool = True
    handle: str | None = None
    gap_s: float | None = None
    """From the end of the turn before, by the router's own clock."""


@dataclass(slots=True)
class _Held:
    """What the router should hold at this point of the log."""

    stored: RouterEvent | None = None
    used: RouterEvent | None = None
    stale: RouterEvent | None = None
    previous: RouterEvent | None = None
    ended: RouterEvent | None = None
    """The end of the turn before, unless that one left no handle."""
    turns: int = 0
    answered: int = 0
    """Turns not known to have failed."""

    def gap_s(self, event: RouterEvent) -> float | None:
        """Return the seconds from the end of the turn before to this one; that end may be in a log that is not here."""
        if self.ended is None or self.ended.stamp is None or event.stamp is None or self.ended.era != event.era:
            return self.stale.age_s if self.stale is not None else None
        return max(event.stamp - self.ended.stamp, 0.0)


def look_ups(events: Sequence[RouterEvent], failed: frozenset[str] = frozenset()) -> Iterator[Outcome]:
    """Yield the outcome of each turn of one conversation, in order.

    `failed` holds the turns known to have failed: what follows such a turn is its effect.
    """
    held = _Held()
    for index, event in enumerate(events):
        if event.kind == "stored":
            held.stored = held.ended = event
        elif event.kind == "stale":
            held.stale = event
        else:
            held.turns += 1
            yield _judge(event, held, events[index + 1 :], failed)._replace(gap_s=held.gap_s(event))
            held.stale = held.ended = None
            held.previous = event
            held.answered += event.turn not in failed
            if event.kind == "hit":
                held.stored, held.used = None, event


def _judge(event: RouterEvent, held: _Held, later: Sequence[RouterEvent], failed: frozenset[str]) -> Outcome:
    turn, number = event.turn or "", held.turns
    if event.kind == "hit":
        return Outcome(turn, number, "hit", [event.evidence], handle=event.handle)
    if event.kind == "anonymous":
        return Outcome(turn, number, "no_conversation_id", [event.evidence])
    if held.stale is not None:
        return Outcome(turn, number, "stale", [held.stale.evidence, event.evidence])
    if held.previous is None:
        return Outcome(turn, number, "first_turn", [event.evidence])
    if held.stored is not None:
        return _lost(event, held.stored, number)
    return _never_stored(event, held, held.previous, later, failed)


def _never_stored(
    event: RouterEvent, held: _Held, previous: RouterEvent, later: Sequence[RouterEvent], failed: frozenset[str]
) -> Outcome:
    """Judge a miss when nothing was stored since the last use: no turn has been answered yet, used up, or not returned."""
    certain = previous.turn not in failed
    evidence = [event.evidence, *([held.used.evidence] if held.used else [])]
    unanswered = not held.answered or _still_running(previous, later)
    if unanswered and held.used is None:
        return Outcome(event.turn or "", held.turns, "first_turn", evidence)
    result = "not_returned" if held.used is None else "consumed"
    return Outcome(event.turn or "", held.turns, result, evidence, certain)


def _lost(event: RouterEvent, stored: RouterEvent, number: int) -> Outcome:
    """Judge a miss although a handle had been stored and was not used: too old, or lost."""
    evidence = [event.evidence, stored.evidence]
    same = event.era == stored.era
    if same and event.stamp is not None and stored.stamp is not None:
        age = event.stamp - stored.stamp
        if age > (stored.ttl_s or _ROUTER_TTL_S) - _SLACK_S:
            return Outcome(event.turn or "", number, "stale", evidence, certain=False)
    return Outcome(event.turn or "", number, "router_lost_state", evidence, certain=not same)


def _still_running(previous: RouterEvent, later: Sequence[RouterEvent]) -> bool:
    """Tell whether the turn before had not ended yet: its handle is stored only later on."""
    return any(
        event.kind == "stored" and event.handle is not None and previous.turn in spellings(event.handle)
        for event in later[:16]
    )
