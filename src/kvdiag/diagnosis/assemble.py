"""The casebook into the report: every turn judged, every rule run, the verdict drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvdiag.causes import CAUSES, OUTCOMES
from kvdiag.diagnosis import clock
from kvdiag.diagnosis.findings import Tally, ranked
from kvdiag.diagnosis.inputs import summarise, window
from kvdiag.diagnosis.judge import judge, outcome
from kvdiag.diagnosis.report import NotEvaluated, Report, TurnCounts, TurnReport, Verdict
from kvdiag.diagnosis.rules import RULES, Tallies

if TYPE_CHECKING:
    from kvdiag.diagnosis.casebook import Casebook
    from kvdiag.diagnosis.judge import Fault
    from kvdiag.diagnosis.options import Options
    from kvdiag.diagnosis.turns import Turn

_MAX_PER_TURN: Final = 100_000
# Outcomes that explain why a turn was not read back; the others need no line of their own.
_SHOWN: Final = frozenset({"below_threshold", "local_hit"})


def assemble(book: Casebook, options: Options) -> Report:
    """Return the report of what the casebook holds; the casebook stays usable."""
    book.settle_all()
    faults = {turn.id: judge(turn, book) for turn in book.turns.values()}
    tallies: Tallies = {}
    for turn in book.turns.values():
        _count(tallies, turn, faults[turn.id])
    for rule in RULES:
        for tally in rule.judge(book, tallies):
            _merge(tallies, tally)
    _absorb_effects(tallies)
    findings = [tally for tally in ranked(tallies.values()) if tally.cause not in OUTCOMES]
    outcomes = [tally for tally in tallies.values() if tally.cause in _SHOWN]
    missing = [
        NotEvaluated(rule=rule.id, needs=rule.needs)
        for rule in RULES
        if not rule.ready(book) and not _fired(rule.causes, tallies)
    ]
    return Report(
        verdict=_verdict(book, findings, tallies, missing),
        window=window(book),
        turns=_turn_counts(book, tallies),
        findings=[tally.finding() for tally in [*findings, *outcomes]],
        not_evaluated=missing,
        inputs=[summarise(notes) for notes in book.files.values()],
        per_turn=_per_turn(book, faults) if options.turns else None,
    )


def _fired(causes: tuple[str, ...], tallies: Tallies) -> bool:
    return any(cause in causes for cause, _ in tallies)


def _count(tallies: Tallies, turn: Turn, faults: list[Fault]) -> None:
    for fault in faults:
        detail = None if fault.cause == "expired_remote_read" else fault.detail
        tally = tallies.setdefault((fault.cause, detail), Tally(fault.cause, fault.detail))
        if tally.detail != fault.detail:
            tally.detail = None
        tally.add(fault.confidence, fault.evidence)
        tally.failed += fault.failed
        tally.lose(turn.tokens_lost, None)
    ended = outcome(turn)
    if not faults and ended is not None:
        tallies.setdefault((ended, None), Tally(ended, None)).add("certain", turn.evidence(ended))


def _merge(tallies: Tallies, tally: Tally) -> None:
    known = tallies.get((tally.cause, tally.detail))
    if known is None:
        tallies[tally.cause, tally.detail] = tally
        return
    known.add(tally.confidence, tally.evidence, turns=tally.turns)
    known.lose(tally.lost_tokens, tally.lost_seconds)


def _absorb_effects(tallies: Tallies) -> None:
    """Count a lease that lapsed while decode queued as the queue's effect."""
    lapsed = tallies.get(("expired_handoff", None))
    roots = [
        tally
        for (cause, detail), tally in tallies.items()
        if cause == "kv_pressure" or (cause, detail) == ("queueing", "decode")
    ]
    if lapsed is not None and roots:
        roots[0].evidence += lapsed.evidence
        roots[0].turns = max(roots[0].turns, lapsed.turns)
        del tallies["expired_handoff", None]


def _verdict(book: Casebook, findings: list[Tally], tallies: Tallies, missing: list[NotEvaluated]) -> Verdict:
    if findings:
        first = findings[0]
        return Verdict(cause=first.cause, detail=first.detail, confidence=first.confidence, summary=_summary(first))
    if not _judged(book):
        return Verdict(cause="inconclusive", confidence="possible", summary=_why_inconclusive(book))
    below = tallies.get(("below_threshold", None))
    if below is not None and below.turns >= sum(
        t.turns for (c, _), t in tallies.items() if c in {"remote_hit", "local_hit"}
    ):
        return Verdict(cause="below_threshold", confidence="certain", summary=_summary(below))
    summary = "no fault seen" if not missing else f"no fault seen; {len(missing)} rules could not be judged"
    return Verdict(cause="healthy", confidence="possible" if missing else "certain", summary=summary)


def _summary(tally: Tally) -> str:
    cause = CAUSES[tally.cause]
    meaning = cause.details.get(tally.detail or "", cause.meaning)
    turns = f"{tally.turns} turn{'s' if tally.turns != 1 else ''}: " if tally.turns else ""
    return f"{turns}{meaning}"


def _judged(book: Casebook) -> bool:
    """Tell whether enough was recognised to call anything healthy: an engine or router at work."""
    working = any(engine.loads or engine.transfers.seen for engine in book.engines)
    return working or bool(book.conversations) or bool(book.turns)


def _why_inconclusive(book: Casebook) -> str:
    systems = sorted({name for notes in book.files.values() for name in notes.systems})
    if systems:
        return f"these are logs of {', '.join(systems)}, not of vLLM: nothing was judged"
    if not any(notes.lines for notes in book.files.values()):
        return "the input is empty: nothing was judged"
    return "too little was recognised: nothing was judged"


def _turn_counts(book: Casebook, tallies: Tallies) -> TurnCounts:
    looked_up = [turn for turn in book.turns.values() if turn.lookup or turn.record]
    accepted = max((notes.accepted for notes in book.files.values()), default=0)
    first = sum(1 for turn in looked_up if turn.number == 1)
    reused = tallies.get(("remote_hit", None))
    total = len(looked_up) or max(accepted, len(book.turns))
    return TurnCounts(total=total, first=first, later=len(looked_up) - first, reused=reused.turns if reused else 0)


def _per_turn(book: Casebook, faults: dict[str, list[Fault]]) -> list[TurnReport]:
    rows = []
    for turn in list(book.turns.values())[:_MAX_PER_TURN]:
        fault = next(iter(faults[turn.id]), None)
        rows.append(
            TurnReport(
                request_id=turn.id,
                conversation=turn.conversation,
                turn=turn.number,
                ts=clock.render(turn.first_seen),
                cause=fault.cause if fault else outcome(turn) or "unexplained",
                detail=fault.detail if fault else None,
                confidence=fault.confidence if fault else "likely",
                prefill_s=turn.prefill_s,
                lost_tokens=turn.tokens_lost,
                evidence=fault.evidence[:4] if fault else [],
            )
        )
    return rows
