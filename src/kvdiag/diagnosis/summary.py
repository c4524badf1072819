"""Turns counted into tallies; closed turns leave nothing else behind."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from kvdiag.causes import OUTCOMES
from kvdiag.diagnosis.digest import REUSED, SENT, SHOWN
from kvdiag.diagnosis.findings import Tally
from kvdiag.diagnosis.judge import Fault, is_only_sent, outcome
from kvdiag.diagnosis.split import events, is_telling, longest_queue, main_part, router_s

if TYPE_CHECKING:
    from kvdiag.causes import Direction
    from kvdiag.diagnosis.digest import Digest
    from kvdiag.diagnosis.latency import Baseline
    from kvdiag.diagnosis.report import Evidence
    from kvdiag.diagnosis.turns import Turn

_LEAVES_REUSE: Final = frozenset(
    {"slow_transfer", "queueing", "kv_pressure", "compute_bound", "router_overhead", "client", "unexplained"}
)
"""Faults of turns that may have read back all the same."""
_KEEPS_WAITING: Final = frozenset({"queueing", "router_overhead"})
"""Faults that are seconds of waiting: the turn is slow however long the others take."""

Key = tuple[str, str | None]
Tallies = dict[Key, Tally]


class Judged(NamedTuple):
    """What a turn's own lines say of it."""

    faults: list[Fault]
    slow: bool


@dataclass(slots=True)
class Summary:
    """What the turns judged so far add up to."""

    tallies: Tallies = field(default_factory=dict)
    turns: int = 0
    """Turns that a router knew, by its log or its records."""
    routed: int = 0
    """Turns of which a router tells where it sent them, and nothing of what came before them."""
    first: int = 0
    reused: int = 0
    sent: int = 0
    """Turns that were sent with a handle; whether prefill read it no line of their own tells."""
    slow: int = 0
    slow_first: int = 0
    """Slow first turns: whatever they took, there was nothing to reuse."""
    unexplained: list[Turn] = field(default_factory=list)
    """Slow turns of which no line of their own says why."""

    became: dict[Key, Key] = field(default_factory=dict)
    """Causes that turned out to be effects, and of what."""

    def copy(self) -> Summary:
        """Return a summary that can be counted on without touching this one."""
        return copy.deepcopy(self)

    def tally(self, cause: str, detail: str | None = None) -> Tally:
        """Return the tally of a cause, a new one where there is none."""
        return self.tallies.setdefault((cause, detail), Tally(cause, detail))

    def count(self, turn: Turn, faults: list[Fault], baseline: Baseline) -> Judged:
        """Count a judged turn; return its faults, among them what made it slow. The doctor's own are nobody's: not counted."""
        if turn.is_probe:
            return Judged(faults, slow=False)
        ended = outcome(turn)
        kept_waiting = baseline.limit_s is None and any(fault.cause in _KEEPS_WAITING for fault in faults)
        slow = kept_waiting or baseline.is_slow(turn, ended if not faults else None)
        if slow and not faults:
            faults = _slow_fault(turn, ended, baseline) if ended != "first_turn" else []
            told = ended in REUSED or baseline.limit_s is not None
            slow = bool(faults) or (told and baseline.is_far_slower(turn, ended))
        self._count_faults(turn, faults, baseline, slow=slow)
        self.slow += slow
        self.slow_first += slow and not faults and ended == "first_turn"
        self._count_outcome(turn, faults, ended, slow=slow)
        if slow and not faults and ended != "first_turn":
            self.unexplained.append(turn)
            return Judged([Fault("unexplained", None, "possible", slow_lines(turn))], slow)
        return Judged(faults, slow)

    def _count_outcome(self, turn: Turn, faults: list[Fault], ended: str | None, *, slow: bool) -> None:
        if turn.counted is not None:
            self._recount(turn, turn.counted, faults, ended)
            return
        sent = is_only_sent(turn)
        if not faults and ended is not None and not sent:
            self.tally(ended).add("certain", outcome_lines(turn, ended))
            self.tally(ended).slow_turns += slow
        known = turn.lookup is not None or turn.record is not None
        self.routed += not known and bool(turn.endpoints)
        self.turns += known
        self.first += known and turn.number == 1
        reused = known and ended == "remote_hit" and all(fault.cause in _LEAVES_REUSE for fault in faults)
        self.sent += reused and sent
        self.reused += reused and not sent

    def _recount(self, turn: Turn, counted: str, faults: list[Fault], ended: str | None) -> None:
        """Take a turn back that went well by its router's word, where another log knows better how it ended."""
        known_better = counted == SENT and ended in SHOWN
        if not faults and not known_better:
            return
        self.sent -= counted == SENT
        self.reused -= counted == "remote_hit"
        if counted != SENT:
            self.tally(counted).turns -= 1
        if not faults and ended is not None:
            self.tally(ended).add("certain", outcome_lines(turn, ended))

    def _count_faults(self, turn: Turn, faults: list[Fault], baseline: Baseline, *, slow: bool) -> None:
        for fault in faults:
            tally = self.tally(fault.cause, None if fault.cause == "expired_remote_read" else fault.detail)
            tally.detail = fault.detail if tally.turns == 0 or tally.detail == fault.detail else None
            tally.add(fault.confidence, fault.evidence)
            tally.failed += fault.failed
            tally.slow_turns += slow
            tally.lose(lost_tokens(turn), lost_s(turn, fault, baseline))

    def add(self, digest: Digest) -> None:
        """Add turns that were only counted."""
        self.turns += digest.ended.total()
        self.first += digest.first
        self.reused += digest.ended["remote_hit"]
        self.sent += digest.ended[SENT]
        for name, turns in digest.ended.items():
            if name != SENT:
                self.tally(name).add("certain", [], turns=turns)

    def merge(self, tally: Tally) -> None:
        """Add what a rule found."""
        known = self.tallies.get((tally.cause, tally.detail))
        if known is None:
            self.tallies[tally.cause, tally.detail] = tally
            return
        known.add(tally.confidence, tally.evidence, turns=tally.turns)
        known.slow_turns += tally.slow_turns
        known.members |= tally.members
        known.lose(tally.lost_tokens, tally.lost_seconds)


def lost_tokens(turn: Turn) -> int | None:
    """Return how many tokens decode held and prefill computed all the same; None where nobody knows.

    A router that had no handle to look at writes 0 where it does not know what decode held.
    """
    record = turn.record
    if record is None or record.lost_tokens is None:
        told = [event.lost_tokens for event in events(turn, "event_decline") if event.lost_tokens]
        return sum(told) if told else turn.tokens_lost
    blind = record.cause == "missing_metadata" and record.lookup != "hit"
    return turn.tokens_lost if blind and not record.lost_tokens else record.lost_tokens


def lost_s(turn: Turn, fault: Fault, baseline: Baseline) -> float | None:
    """Return the seconds that a fault cost its turn: the router's own, the queue's, or what reuse would have saved; None if unknown."""
    if fault.cause == "router_overhead":
        return router_s(turn)
    if fault.cause == "queueing":
        return longest_queue(turn)[1] or None
    reuse = fault.cause in {"missing_metadata", "feature_off", "prefix_diverged", "expired_remote_read"}
    return baseline.saved_s(turn) if reuse and not fault.failed and fault.cause not in OUTCOMES else None


def _slow_fault(turn: Turn, ended: str | None, baseline: Baseline) -> list[Fault]:
    """Judge a slow turn without a fault by its largest part, where that is known and explains it.

    Without a limit it has to be far slower than others, and by more than an engine that is short of CPU would do.
    """
    part = main_part(turn)
    if part is None:
        return []
    if baseline.limit_s is None and not (baseline.is_far_slower(turn, ended) and _explains(part, turn, baseline)):
        return []
    return [Fault(*part, "likely", slow_lines(turn))]


def _explains(part: tuple[str, str | None], turn: Turn, baseline: Baseline) -> bool:
    if part[0] == "compute_bound":
        return baseline.took_as_ever(turn)
    return part[0] != "slow_transfer" or is_telling(turn, cast("Direction", part[1]))


def outcome_lines(turn: Turn, ended: str | None) -> list[Evidence]:
    """Return the lines that show how a turn without a fault ended."""
    if turn.record_at is not None:
        return [turn.record_at]
    looked_up = turn.lookup.evidence[:1] if turn.lookup is not None else []
    return turn.evidence(ended or "") or turn.evidence("event_match") or looked_up


def slow_lines(turn: Turn) -> list[Evidence]:
    """Return the lines that show how long a turn took."""
    return turn.evidence("event_transfer", "prefill_done", "handle_sent") or (
        [turn.record_at] if turn.record_at else []
    )
