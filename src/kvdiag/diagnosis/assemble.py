"""The casebook into the report: every turn judged, every rule run, the verdict drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvdiag.causes import CAUSES, OUTCOMES
from kvdiag.diagnosis.averages import averages
from kvdiag.diagnosis.digest import SHOWN
from kvdiag.diagnosis.effects import absorb_effects, explain_slow, members_of, settle
from kvdiag.diagnosis.expiry import unplaced
from kvdiag.diagnosis.findings import ranked
from kvdiag.diagnosis.inputs import settings, summarise, window
from kvdiag.diagnosis.judge import judge, outcome
from kvdiag.diagnosis.latency import Baseline
from kvdiag.diagnosis.per_turn import row
from kvdiag.diagnosis.report import Latency, NotEvaluated, Report, TurnCounts, Verdict
from kvdiag.diagnosis.routing import MARKS
from kvdiag.diagnosis.rules import RULES
from kvdiag.diagnosis.split import events, needs

if TYPE_CHECKING:
    from kvdiag.diagnosis.casebook import Casebook, FileNotes
    from kvdiag.diagnosis.findings import Tally
    from kvdiag.diagnosis.options import Options
    from kvdiag.diagnosis.report import TurnReport
    from kvdiag.diagnosis.summary import Judged, Summary
    from kvdiag.diagnosis.turns import Turn

_NAMED: Final = 3
_UNTELLING: Final = MARKS | {"released"}
_WHO_READ: Final = (
    "no fault seen, but only prefill's log tells whether it read what the router's handles offered: add it"
)
_REUSED: Final = frozenset({"remote_hit", "local_hit"})


def assemble(book: Casebook, options: Options) -> Report:
    """Return the report of what the casebook holds; the casebook can be read on afterwards."""
    book.settle_all()
    summary = book.closed.copy()
    baseline, judged = _judge_turns(book, summary, options)
    by_turns = {key: tally.turns for key, tally in summary.tallies.items()}
    for rule in RULES:
        for tally in rule.judge(book, summary.tallies):
            summary.merge(tally)
    absorb_effects(book, summary, by_turns)
    explain_slow(summary)
    reads = _reads_back(book)
    rows = _rows(summary, judged, baseline, options, reads=reads)
    faults = (tally for tally in summary.tallies.values() if tally.cause not in OUTCOMES)
    findings = ranked(tally for tally in faults if not tally.on_purpose)
    shown = [tally for tally in summary.tallies.values() if tally.cause in SHOWN or tally.on_purpose]
    missing = _not_evaluated(book, summary)
    return Report(
        verdict=_verdict(book, findings, summary, missing),
        window=window(book),
        turns=_turn_counts(book, summary, reads=reads),
        findings=[tally.finding() for tally in [*findings, *shown]],
        not_evaluated=missing,
        inputs=[summarise(notes) for notes in book.files.values()],
        settings=settings(book),
        latency=Latency(needs=needs(turn.split for turn in rows), averages=averages(book)),
        per_turn=rows if options.turns else None,
        without_row=book.let_go if options.turns else 0,
    )


def _judge_turns(book: Casebook, summary: Summary, options: Options) -> tuple[Baseline, list[tuple[Turn, Judged]]]:
    turns = list(book.turns.values())
    judged = [judge(turn, book) for turn in turns]
    outcomes = (None if faults else outcome(turn) for turn, faults in zip(turns, judged, strict=True))
    baseline = Baseline.of(zip(turns, outcomes, strict=True), options.slow_s, book.calm)
    baseline.per_token += book.per_token.samples
    known = [(turn, summary.count(turn, found, baseline)) for turn, found in zip(turns, judged, strict=True)]
    return baseline, known


def _rows(
    summary: Summary, judged: list[tuple[Turn, Judged]], baseline: Baseline, options: Options, *, reads: bool
) -> list[TurnReport]:
    members = members_of(summary.tallies)
    rows = []
    for turn, found in judged:
        known = settle(turn, found, summary, members)
        # What the doctor asks engines directly is nobody's turn: it has a row only where something is known of it.
        if options.turns and (known.faults or not turn.is_probe or outcome(turn) is not None):
            rows.append(row(turn, known, baseline, reads=reads))
    return sorted(rows, key=lambda turn: (turn.ts is None, turn.ts or ""))


def _reads_back(book: Casebook) -> bool:
    """Tell whether a prefill's own log shows that it reads back: then a handle that was sent is likely to have been read."""
    return any(
        engine.counts["transfers_succeeded"] or engine.counts["event_transfer"] or engine.notes.get("read_claimed")
        for engine in book.with_role("prefill")
    )


def _not_evaluated(book: Casebook, summary: Summary) -> list[NotEvaluated]:
    found = {cause for cause, _ in summary.tallies}
    silent = (rule for rule in RULES if not found & set(rule.causes) and not rule.ready(book))
    return [NotEvaluated(rule=rule.id, needs=rule.needs) for rule in silent]


def _verdict(book: Casebook, findings: list[Tally], summary: Summary, missing: list[NotEvaluated]) -> Verdict:
    if findings:
        first = findings[0]
        return Verdict(cause=first.cause, detail=first.detail, confidence=first.confidence, summary=_summary(first))
    if reason := _open_question(book, summary):
        return Verdict(cause="inconclusive", confidence="possible", summary=reason)
    below = summary.tallies.get(("below_threshold", None))
    others = summary.sent + sum(tally.turns for (cause, _), tally in summary.tallies.items() if cause in _REUSED)
    if below is not None and below.turns >= others:
        return Verdict(cause="below_threshold", confidence="certain", summary=_summary(below))
    text = (
        "no fault seen"
        if not missing
        else f"no fault seen; {len(missing)} rule{'s' if len(missing) > 1 else ''} could not be judged"
    )
    return Verdict(cause="healthy", confidence="possible" if missing else "certain", summary=text)


def _summary(tally: Tally) -> str:
    if tally.summary is not None:
        return tally.summary
    cause = CAUSES[tally.cause]
    meaning = cause.details.get(tally.detail or "", cause.meaning)
    turns = f"{tally.turns} turn{'s' if tally.turns != 1 else ''}: " if tally.turns else ""
    return f"{turns}{meaning}"


def _open_question(book: Casebook, summary: Summary) -> str | None:
    """Return why nothing can be called healthy although no fault was found; None where nothing speaks against it."""
    if logs := unplaced(book):
        return _whose_are(logs)
    if not _judged(book):
        return _why_inconclusive(book)
    if book.unread:
        return _what_is_missing(book.unread)
    return _WHO_READ if summary.sent and not book.with_role("prefill") else None


def _is_matched(turn: Turn) -> bool:
    return any(event.role == "prefill" for event in events(turn, "event_match"))


def _judged(book: Casebook) -> bool:
    """Tell whether enough was recognised to call anything healthy: an engine at work, or what became of turns."""
    working = any(engine.loads or engine.transfers.seen or engine.snapshots for engine in book.engines)
    known = bool(book.conversations or book.closed.turns or book.matched)
    return working or known or any(_is_told(turn) for turn in book.turns.values())


def _is_told(turn: Turn) -> bool:
    """Tell whether more is known of a turn than the engines that its router chose, and that decode kept its blocks to the end."""
    return turn.record is not None or not turn.marks.keys() <= _UNTELLING


def _what_is_missing(unread: list[FileNotes]) -> str:
    """Return why nothing can be called healthy: a fault may stand where nobody could read."""
    named = _some([f"{notes.path} ({notes.problem})" for notes in unread])
    return f"no fault seen, but not every input could be read to its end: {named}"


def _whose_are(logs: list[str]) -> str:
    """Return why expiries are not judged where nothing tells who wrote them."""
    return f"blocks expired in {_some(logs)}: normal on decode, a fault on prefill, and nothing tells which it is; say so with --role"


def _some(names: list[str]) -> str:
    """Return the first names of a list, and how many more there are."""
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _why_inconclusive(book: Casebook) -> str:
    systems = sorted({name for notes in book.files.values() for name in notes.systems})
    if systems:
        return f"these are logs of {', '.join(systems)}, not of vLLM: nothing was judged"
    if not any(notes.lines for notes in book.files.values()):
        return "the input is empty: nothing was judged"
    routers = sorted({name for notes in book.files.values() for name in notes.products})
    if routers:
        return f"{', '.join(routers)} tells where turns went, not what was reused: add the logs of prefill and decode"
    return "too little was recognised: nothing was judged"


def _turn_counts(book: Casebook, summary: Summary, *, reads: bool) -> TurnCounts:
    accepted = max((notes.accepted for notes in book.files.values()), default=0)
    found = max((tally.turns for tally in summary.tallies.values()), default=0)
    # A turn whose match was only counted may have a row for another event of it.
    matched = book.matched + sum(_is_matched(turn) for turn in book.turns.values())
    return TurnCounts(
        total=summary.turns + summary.routed or max(accepted, found, matched, len(book.turns)),
        first=summary.first,
        later=summary.turns - summary.first,
        reused=summary.reused + (summary.sent if reads else 0),
        slow=summary.slow,
        slow_first=summary.slow_first,
    )
