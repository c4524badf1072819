"""Markdown: tables that stay tables, text from logs that stays text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from markdown_it import MarkdownIt

from kvdiag.diagnosis.render import render

if TYPE_CHECKING:
    from kvdiag.diagnosis.report import Report


def _html(report: Report) -> str:
    return str(
        MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(render(report, "markdown", turns=True))
    )


def test_begins_with_the_verdict(report: Report) -> None:
    assert render(report, "markdown").startswith("# expired_remote_read/declined (certain): 2 of 4 later turns")


def test_tables_have_as_many_cells_as_headings(report: Report) -> None:
    for table in re.findall(r"<table>.*?</table>", _html(report), re.DOTALL):
        rows = [len(re.findall("<t[dh][ >]", row)) for row in table.split("</tr>")[:-1]]
        assert len(set(rows)) == 1


def test_hostile_evidence_becomes_no_html(report: Report) -> None:
    page = _html(report)
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


@pytest.mark.parametrize(
    "text", ["a ``` b", "`", "``x``", "# title", "[a](http://e.example)", "<b>", "a | b", "*a* _b_ ~~c~~"]
)
def test_a_hostile_summary_stays_text(report: Report, text: str) -> None:
    report.verdict.summary = text
    page = _html(report)
    heading = page.split("</h1>")[0]
    assert not re.search(r"<(a|em|strong|code|b|s|table)\b", heading)


def test_says_what_could_not_be_judged(report: Report) -> None:
    assert "| `queueing` | `the engine's periodic lines` |" in render(report, "markdown")
