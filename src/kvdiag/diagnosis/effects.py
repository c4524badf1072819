"""What the whole logs make of single turns: faults that are the effect of another, slow turns that a rule explains."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kvdiag.diagnosis.judge import Fault
from kvdiag.diagnosis.loads import is_short_of_blocks
from kvdiag.diagnosis.rules import SLOWING
from kvdiag.diagnosis.summary import Judged, slow_lines

if TYPE_CHECKING:
    from kvdiag.causes import Confidence
    from kvdiag.diagnosis.casebook import Casebook
    from kvdiag.diagnosis.engines import EngineLog
    from kvdiag.diagnosis.findings import Tally
    from kvdiag.diagnosis.summary import Key, Summary, Tallies
    from kvdiag.diagnosis.turns import Turn

_LAPSED: Final[Key] = ("expired_handoff", None)


def absorb_effects(book: Casebook, summary: Summary, by_turns: dict[Key, int]) -> None:
    """Count a lease that lapsed while decode queued, or was down, as the effect that it is.

    `by_turns` holds how many turns each cause was found in before the rules looked at the whole logs.
    """
    lapsed = summary.tallies.get(_LAPSED)
    root = next((key for key, tally in summary.tallies.items() if _keeps_decode_busy(tally, book)), None)
    if lapsed is not None and root is not None:
        tally, own = summary.tallies[root], by_turns.get(root, 0)
        tally.evidence += lapsed.evidence
        # What a rule counted without names may be these very turns.
        tally.turns = own + max(tally.turns - own, lapsed.turns)
        _become(summary, _LAPSED, root)
    for engine in book.engines:
        _absorb_queue(engine, summary)


def _become(summary: Summary, effect: Key, root: Key) -> None:
    summary.became[effect] = root
    del summary.tallies[effect]


def _keeps_decode_busy(tally: Tally, book: Casebook) -> bool:
    if tally.cause == "upstream_error":
        return any(
            engine.role == "decode" and engine.notes.keys() & {"fatal", "crash", "stalled"} for engine in book.engines
        )
    return tally.cause == "kv_pressure" or (tally.cause, tally.detail) == ("queueing", "decode")


def _absorb_queue(engine: EngineLog, summary: Summary) -> None:
    """Count turns that queued at a full cache as the effect that they are."""
    effect = ("queueing", engine.role)
    queued = summary.tallies.get(effect)
    root = next((key for key, tally in summary.tallies.items() if tally.cause == "kv_pressure"), None)
    if queued is None or root is None or not is_short_of_blocks(engine):
        return
    pressure = summary.tallies[root]
    pressure.turns = max(pressure.turns, queued.turns)
    pressure.slow_turns += queued.slow_turns
    pressure.members |= queued.members
    pressure.lose(queued.lost_tokens, queued.lost_seconds)
    _become(summary, effect, root)


def explain_slow(summary: Summary) -> None:
    """Count the turns that were slow although their own lines do not say why: with what the engines' load and pace say."""
    slowing = [tally for (cause, _), tally in summary.tallies.items() if cause in SLOWING]
    explained = {name for tally in summary.tallies.values() for name in tally.members}
    left = [turn for turn in summary.unexplained if slowing or turn.id not in explained]
    if slowing:
        dearest = max(slowing, key=lambda tally: tally.cost)
        dearest.slow_turns += len(left)
        dearest.members |= {turn.id for turn in left}
        return
    for turn in left:
        tally = summary.tally("unexplained")
        tally.add("possible", slow_lines(turn))
        tally.slow_turns += 1


def members_of(tallies: Tallies) -> dict[str, Tally]:
    """Return what rules found of turns that have no fault of their own, by their ids."""
    return {name: tally for tally in tallies.values() for name in tally.members}


def settle(turn: Turn, known: Judged, summary: Summary, members: dict[str, Tally]) -> Judged:
    """Return what is known of a turn once the rules have looked at the whole logs."""
    fault = known.faults[0] if known.faults else None
    tally = members.get(turn.id)
    if tally is not None and (fault is None or fault.cause == "unexplained"):
        summary.slow += not known.slow
        return Judged([Fault(tally.cause, tally.detail, _at_most_likely(tally), slow_lines(turn))], slow=True)
    root = _root(fault, summary)
    if fault is None or root is None:
        return known
    cause, detail = root.cause, root.detail
    return known._replace(faults=[replace(fault, cause=cause, detail=detail, confidence=_at_most_likely(root))])


def _root(fault: Fault | None, summary: Summary) -> Tally | None:
    key = (fault.cause, fault.detail) if fault is not None else None
    if key not in summary.became:
        return None
    while key in summary.became:
        key = summary.became[key]
    return summary.tallies.get(key) if key is not None else None


def _at_most_likely(tally: Tally) -> Confidence:
    """Return how sure it is of one turn what a rule found in all of them."""
    return "possible" if tally.confidence == "possible" else "likely"
