"""The report for a terminal: the verdict first, then what each cause cost, why, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from kvdiag.diagnosis.render import wording
from kvdiag.diagnosis.render.neutral import neutral
from kvdiag.diagnosis.render.screen import aligned, screen, table, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from kvdiag.diagnosis.render import Style
    from kvdiag.diagnosis.report import Finding, Report, TurnReport

_NARROW: Final = 140
_LEFT_OUT_WHEN_NARROW: Final = frozenset({"Time", "Confidence", "Prompt", "Request"})
_EVIDENCE_SHOWN: Final = 3
_VERDICT_STYLES: Final = {"healthy": "bold green", "inconclusive": "bold yellow"}


def render(report: Report, style: Style) -> str:
    """Return the report as text; with colour where the terminal shows it, plain otherwise."""
    console = screen(style)
    turns = report.per_turn if style.turns else None
    narrow = console.width < _NARROW
    shown = text(_parts(report, narrow=narrow), console)
    if not turns:
        return shown
    needs = _listed("Parts of the time that are not known of every turn:", wording.needed(report.latency.needs))
    return shown + _turns(turns, narrow=narrow) + text(needs, console)


def _parts(report: Report, *, narrow: bool) -> Iterable[RenderableType]:
    verdict = report.verdict
    yield Text(wording.verdict_line(verdict), style=_VERDICT_STYLES.get(verdict.cause, "bold red"))
    yield Text(
        " | ".join(filter(None, (wording.turns_line(report.turns), wording.window_line(report.window)))), style="dim"
    )
    if notice := wording.notice(report):
        yield Text(notice, style="bold yellow")
    if report.findings:
        shown = len(wording.FINDING_HEADINGS) - narrow  # the evidence stands below as well
        rows = (wording.finding_cells(finding)[:shown] for finding in report.findings)
        yield table(wording.FINDING_HEADINGS[:shown], rows, wording.NUMERIC)
        yield from map(_finding, report.findings)
    yield from _listed("Times that only counters tell:", list(map(wording.average_line, report.latency.averages)))
    yield from _listed(
        "Not judged, for want of input:", [f"{rule.rule}: needs {rule.needs}" for rule in report.not_evaluated]
    )
    yield from _listed("Inputs:", [wording.input_line(source) for source in report.inputs])


def _turns(turns: Sequence[TurnReport], *, narrow: bool) -> str:
    left_out = _LEFT_OUT_WHEN_NARROW if narrow else frozenset()
    kept = [at for at, heading in enumerate(wording.TURN_HEADINGS) if heading not in left_out]
    rows = [[row[at] for at in kept] for row in (wording.turn_cells(turn, narrow=narrow) for turn in turns)]
    return "\nTurns:\n" + aligned([wording.TURN_HEADINGS[at] for at in kept], rows, wording.NUMERIC)


def _finding(finding: Finding) -> Group:
    title = Text(wording.cause_name(finding.cause, finding.detail), style="bold")
    title.append(f"  {wording.meaning(finding.cause, finding.detail)}", style="not bold")
    lines = [f"{wording.place(item)}  {neutral(item.text)}" for item in finding.evidence[:_EVIDENCE_SHOWN]]
    hidden = len(finding.evidence) - _EVIDENCE_SHOWN
    if hidden > 0:
        lines.append(f"... and {hidden} more")
    if finding.next_step:
        lines.append(f"next: {neutral(finding.next_step)}")
    if finding.runbook:
        lines.append(f"more: {wording.more(finding)}")
    return Group(title, *(Padding(Text(line, overflow="fold"), (0, 0, 0, 4)) for line in lines), Text())


def _listed(heading: str, lines: Sequence[str]) -> Iterable[RenderableType]:
    if not lines:
        return
    yield Text(heading, style="bold")
    for line in lines:
        yield Padding(Text(neutral(line), overflow="fold"), (0, 0, 0, 4))
