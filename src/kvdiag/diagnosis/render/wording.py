"""How numbers and names read, the same in every human-readable output."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Final

from kvdiag.causes import CAUSES
from kvdiag.diagnosis.render.neutral import neutral

if TYPE_CHECKING:
    from kvdiag.diagnosis.report import (
        Average,
        Evidence,
        Finding,
        InputSummary,
        LatencySplit,
        Report,
        TurnCounts,
        TurnReport,
        Verdict,
        Window,
    )

UNKNOWN: Final = "?"
"""Stands for a figure that no input tells; never confused with 0."""


def cause_name(cause: str, detail: str | None) -> str:
    """Return `cause/detail`, neutral."""
    return neutral(f"{cause}/{detail}" if detail else cause)


def meaning(cause: str, detail: str | None) -> str:
    """Return what the cause means, with the meaning of its detail where it has one."""
    known = CAUSES.get(cause)
    if known is None:
        return ""
    more = known.details.get(detail or "")
    return f"{known.meaning}: {more}" if more else known.meaning


def count(value: int | None) -> str:
    """Return a count with thousands separated."""
    return UNKNOWN if value is None else f"{value:,}"


def counted(value: int, noun: str) -> str:
    """Return a count with its noun, in the singular where it is one."""
    return f"{count(value)} {noun}{'' if value == 1 else 's'}"


def seconds(value: float | None) -> str:
    """Return a duration in the unit that reads best."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0 s"
    if abs(value) < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s" if abs(value) < 1000 else f"{value:,.0f} s"


def size(value: float | None) -> str:
    """Return a number of bytes in decimal units."""
    if value is None:
        return UNKNOWN
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"


def place(evidence: Evidence) -> str:
    """Return `file:line`, neutral."""
    return neutral(f"{evidence.path}:{evidence.line}")


PARTS: Final = (
    ("router", "router", "r"),
    ("prefill_queue", "prefill queue", "q"),
    ("read", "read back", "R"),
    ("prefill_compute", "prefill compute", "C"),
    ("prefill_unsplit", "prefill as a whole", "P"),
    ("handoff", "hand-off", "H"),
    ("decode_first_token", "decode first token", "D"),
    ("decode_unsplit", "all after prefill", "A"),
)
"""The parts of a turn's time to first token in their order: field of `LatencySplit`, name, letter in a bar."""
_PART_NAMES: Final = {field: name for field, name, _ in PARTS}


def spent(split: LatencySplit | None) -> str:
    """Return where the time to first token went, the known parts in their order."""
    return ", ".join(f"{name} {seconds(value)}" for name, value in _taken(split))


def longest(split: LatencySplit | None) -> str:
    """Return the part that took longest."""
    taken = _taken(split)
    if not taken:
        return UNKNOWN
    name, value = max(taken, key=itemgetter(1))
    return f"{name} {seconds(value)}"


def _taken(split: LatencySplit | None) -> list[tuple[str, float]]:
    return [(name, value) for field, name, _ in PARTS if (value := getattr(split, field, None))]


def needed(needs: dict[str, str]) -> list[str]:
    """Return the parts that are not known everywhere, each with what would tell it."""
    return [f"{_PART_NAMES.get(part, part)}: needs {need}" for part, need in needs.items()]


def average_line(average: Average) -> str:
    """Return what parts took on average, in one line."""
    parts = " and ".join(_PART_NAMES.get(part, part) for part in average.parts)
    return neutral(
        f"{parts}: {seconds(average.mean_s)} on average over {counted(average.requests, 'request')} of {average.role} since "
        f"the {average.since} ({average.metric}); of no single turn"
    )


def first_place(finding: Finding | TurnReport, *, narrow: bool = False) -> str:
    """Return the place of the first evidence, without its folder where that is too long, and how many more there are."""
    if not finding.evidence:
        return "-"
    more = len(finding.evidence) - 1
    found = place(finding.evidence[0])
    return (found.rpartition("/")[2] if narrow else found) + (f" (+{more})" if more else "")


def verdict_line(verdict: Verdict) -> str:
    """Return the answer in one line."""
    return f"{cause_name(verdict.cause, verdict.detail)}{sureness(verdict)}: {neutral(verdict.summary)}"


def sureness(verdict: Verdict) -> str:
    """Return how sure the verdict is, in brackets; nothing where there is none."""
    return "" if verdict.cause == "inconclusive" else f" ({verdict.confidence})"


def notice(report: Report) -> str:
    """Return what limits the whole report, nothing where nothing does."""
    limits = []
    if report.interrupted:
        limits.append("Reading was interrupted: this is what was known by then.")
    if report.without_row:
        shown = count(len(report.per_turn or ()))
        limits.append(f"Only the last {shown} turns have a row; {count(report.without_row)} earlier ones are counted.")
    nameless = report.turns.total - report.without_row - len(report.per_turn or ())
    if report.per_turn is not None and nameless > 0:
        limits.append(f"{count(nameless)} of {count(report.turns.total)} turns have no row: no line names them.")
    return " ".join(limits)


def more(finding: Finding) -> str:
    """Return the command that prints the finding's runbook, nothing where there is none."""
    return neutral(f"kvdiag runbook {finding.runbook}") if finding.runbook else ""


def turns_line(turns: TurnCounts) -> str:
    """Return how many turns were seen, in one line."""
    firsts = f" ({counted(turns.slow_first, 'slow first turn')}, computed in full)" if turns.slow_first else ""
    return (
        f"{counted(turns.total, 'turn')}: {count(turns.first)} first, {count(turns.later)} later, "
        f"{count(turns.reused)} reused, {count(turns.slow)} slow{firsts}"
    )


def window_line(window: Window) -> str:
    """Return the time covered, or nothing where no input tells."""
    if not window.from_ and not window.to:
        return ""
    return neutral(f"{window.from_ or UNKNOWN} to {window.to or UNKNOWN}")


def input_line(source: InputSummary) -> str:
    """Return one file as it was read, in one line."""
    if source.problem and not source.cut_short:
        return neutral(f"{source.path}: {source.problem}")
    role = f", {source.role}" if source.role else ""
    repeated = f", {count(source.repeated)} of them a second time" if source.repeated else ""
    return neutral(
        f"{source.path}: {source.kind}{role}, {count(source.recognised)} of {count(source.lines)} lines recognised{repeated}"
        f"{f'; cut short: {source.problem}' if source.cut_short else ''}"
    )


def turn_cells(turn: TurnReport, *, narrow: bool = False) -> tuple[str, ...]:
    """Return one turn as the cells of `TURN_HEADINGS`; narrow: its longest part alone, and the evidence's file without folder."""
    return (
        neutral(turn.ts or UNKNOWN),
        neutral(turn.conversation or UNKNOWN),
        count(turn.turn),
        neutral(turn.request_id) + (" (doctor's probe)" if turn.probe else ""),
        cause_name(turn.cause, turn.detail),
        turn.confidence,
        "slow" if turn.slow else "",
        seconds(turn.ttft_s),
        longest(turn.split) if narrow else spent(turn.split) or UNKNOWN,
        count(turn.prompt_tokens),
        count(turn.lost_tokens),
        first_place(turn, narrow=narrow),
    )


TURN_HEADINGS: Final = (
    "Time",
    "Conversation",
    "Turn",
    "Request",
    "Cause",
    "Confidence",
    "Slow",
    "TTFT",
    "Of it",
    "Prompt",
    "Lost",
    "Evidence",
)
FINDING_HEADINGS: Final = ("Cause", "Confidence", "Turns", "Slow", "Lost tokens", "Lost time", "Evidence")
NUMERIC: Final = frozenset({"Turn", "Turns", "Slow", "Lost tokens", "Lost time", "TTFT", "Prompt", "Lost"})


def finding_cells(finding: Finding) -> tuple[str, ...]:
    """Return one finding as the cells of `FINDING_HEADINGS`."""
    return (
        cause_name(finding.cause, finding.detail),
        finding.confidence,
        count(finding.turns),
        count(finding.slow_turns),
        count(finding.lost_tokens),
        seconds(finding.lost_seconds),
        first_place(finding),
    )
