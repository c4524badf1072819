"""The report for a terminal: the verdict first, then what each cause cost, why, and what to change."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvdiag.diagnosis.render import wording
from kvdiag.diagnosis.render.neutral import neutral

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from kvdiag.diagnosis.render import Style
    from kvdiag.diagnosis.report import Finding, Report

_PIPED_WIDTH: Final = 160
_EVIDENCE_SHOWN: Final = 3
_VERDICT_STYLES: Final = {"healthy": "bold green", "inconclusive": "bold yellow"}


def render(report: Report, style: Style) -> str:
    """Return the report as text; with colour where the terminal shows it, plain otherwise."""
    screen = Console()
    color = screen.is_terminal and not screen.no_color if style.color is None else style.color
    console = Console(
        file=io.StringIO(),
        width=style.width or (screen.width if screen.is_terminal else _PIPED_WIDTH),
        force_terminal=color,
        color_system="standard" if color else None,
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    with console.capture() as captured:
        console.print(Group(*_parts(report, turns=style.turns)))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _parts(report: Report, *, turns: bool) -> Iterable[RenderableType]:
    verdict = report.verdict
    yield Text(wording.verdict_line(verdict), style=_VERDICT_STYLES.get(verdict.cause, "bold red"))
    yield Text(" | ".join(filter(None, (wording.turns_line(report.turns), wording.window_line(report.window)))), style="dim")
    if report.findings:
        yield _table(wording.FINDING_HEADINGS, map(wording.finding_cells, report.findings))
        yield from map(_finding, report.findings)
    yield from _listed("Not judged, for want of input:", [f"{rule.rule}: needs {rule.needs}" for rule in report.not_evaluated])
    yield from _listed("Inputs:", [wording.input_line(source) for source in report.inputs])
    if turns and report.per_turn:
        yield _table(wording.TURN_HEADINGS, map(wording.turn_cells, report.per_turn))


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in wording.NUMERIC else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


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
        lines.append(f"runbook: {neutral(finding.runbook)}")
    return Group(title, *(Padding(Text(line, overflow="fold"), (0, 0, 0, 4)) for line in lines), Text())


def _listed(heading: str, lines: Sequence[str]) -> Iterable[RenderableType]:
    if not lines:
        return
    yield Text(heading, style="bold")
    for line in lines:
        yield Padding(Text(neutral(line), overflow="fold"), (0, 0, 0, 4))
