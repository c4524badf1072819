"""The report as GitHub-flavoured Markdown, for tickets and incident notes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kvdiag.diagnosis.render import wording
from kvdiag.diagnosis.render.neutral import neutral

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kvdiag.diagnosis.render import Style
    from kvdiag.diagnosis.report import Finding, Report

_SPECIAL: Final = re.compile(r"([\\`*\[\]<>|~&#]|:(?=//)|(?<!\w)_|_(?!\w))")


def render(report: Report, style: Style) -> str:
    """Return the report as Markdown; text from logs stands in code spans, where nothing is interpreted."""
    return "\n".join(_lines(report, turns=style.turns)) + "\n"


def _lines(report: Report, *, turns: bool) -> Iterator[str]:
    yield f"# {_prose(wording.verdict_line(report.verdict))}"
    yield ""
    yield "  \n".join(
        map(
            _prose,
            filter(
                None, (wording.notice(report), wording.turns_line(report.turns), wording.window_line(report.window))
            ),
        )
    )
    if report.findings:
        yield from _section("Causes", _table(wording.FINDING_HEADINGS, map(wording.finding_cells, report.findings)))
        for finding in report.findings:
            yield from _finding(finding)
    if report.latency.averages:
        lines = (f"- {_code(wording.average_line(average))}" for average in report.latency.averages)
        yield from _section("Times that only counters tell", lines)
    if report.not_evaluated:
        rows = ((rule.rule, rule.needs) for rule in report.not_evaluated)
        yield from _section("Not judged, for want of input", _table(("Rule", "Needs"), rows))
    if turns and report.per_turn:
        yield from _section("Turns", _table(wording.TURN_HEADINGS, map(wording.turn_cells, report.per_turn)))
        yield ""
        yield from (f"- Not known of every turn: {_prose(line)}" for line in wording.needed(report.latency.needs))
    yield from _section("Inputs", (f"- {_code(wording.input_line(source))}" for source in report.inputs))


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield from ("", f"## {title}", "")
    yield from lines


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _row(headings)
    yield _row(["---:" if heading in wording.NUMERIC else "---" for heading in headings])
    for row in rows:
        yield _row([_code(cell).replace("|", "\\|") if cell else "" for cell in row])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _finding(finding: Finding) -> Iterator[str]:
    yield from ("", f"### {_prose(wording.cause_name(finding.cause, finding.detail))}", "")
    yield f"{_prose(wording.meaning(finding.cause, finding.detail))}"
    if finding.next_step:
        yield from ("", f"**Next step:** {_prose(finding.next_step)}")
    if finding.runbook:
        yield from ("", f"**More:** {_code(wording.more(finding))}")
    yield ""
    for item in finding.evidence:
        yield f"- {_code(wording.place(item))} {_code(item.text)}"


def _prose(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", neutral(text))


def _code(text: str) -> str:
    shown = neutral(text)
    longest = max(map(len, re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}" if shown else ""
