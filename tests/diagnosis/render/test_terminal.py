"""The terminal output: verdict first, plain when piped, nothing hostile gets through."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from kvdiag.diagnosis.render import FORMATS, render

if TYPE_CHECKING:
    from kvdiag.diagnosis.render import Format
    from kvdiag.diagnosis.report import Report


def test_begins_with_the_verdict(report: Report) -> None:
    first = render(report, "terminal", color=False).splitlines()[0]
    assert first == "expired_remote_read/declined (certain): 2 of 4 later turns recomputed 3,000 tokens"


def test_names_every_cause_with_cost_evidence_and_next_step(report: Report) -> None:
    text = render(report, "terminal", color=False)
    row = next(line for line in text.splitlines() if line.strip().startswith("expired_remote_read/declined  certain"))
    assert re.split(r" {2,}", row.strip()) == [
        "expired_remote_read/declined",
        "certain",
        "2",
        "2",
        "3,000",
        "1.25 s",
        "prefill.log:42 (+3)",
    ]
    assert "next: raise decoder_kv_blocks_ttl" in text
    assert "... and 1 more" in text


def test_an_unknown_cost_is_not_a_zero(report: Report) -> None:
    row = next(line for line in render(report, "terminal", color=False).splitlines() if line.startswith(" unexplained"))
    assert row.split()[2:6] == ["1", "0", "?", "?"]


def test_says_what_could_not_be_judged(report: Report) -> None:
    assert "queueing: needs the engine's periodic lines" in render(report, "terminal", color=False)


def test_names_inputs_that_could_not_be_used(report: Report) -> None:
    assert "core.bin: not a log: binary data" in render(report, "terminal", color=False)


def test_turns_only_when_asked_for(report: Report) -> None:
    assert "chatcmpl-r4" not in render(report, "terminal", color=False)
    assert "chatcmpl-r4" in render(report, "terminal", turns=True, color=False)


def test_piped_output_keeps_each_turn_on_one_line(report: Report) -> None:
    lines = render(report, "terminal", turns=True).splitlines()
    row = next(line for line in lines if "chatcmpl-r3" in line)
    assert "expired_remote_read/declined" in row
    assert "prefill.log:42" in row


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_fits_the_width(report: Report, width: int) -> None:
    assert max(map(len, render(report, "terminal", color=False, width=width).splitlines())) <= width


def test_plain_output_holds_no_control_character(report: Report) -> None:
    text = render(report, "terminal", turns=True, color=False)
    assert not re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u200b]", text)


def test_coloured_output_holds_no_escape_but_its_own(report: Report) -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", render(report, "terminal", turns=True, color=True, width=100))
    assert "\x1b" not in text
    assert "\\x1b[2J" in text


def test_markup_in_evidence_stays_text(report: Report) -> None:
    report.findings[1].evidence[0].text = "[bold red]x[/] :boom: [link=https://e.example]y[/link]"
    assert "[bold red]x[/] :boom: [link=https://e.example]y[/link]" in render(report, "terminal", color=False)


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_no_color_wins_over_a_terminal(
    report: Report, monkeypatch: pytest.MonkeyPatch, no_color: str, *, coloured: bool
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", no_color)
    assert ("\x1b[" in render(report, "terminal")) is coloured


def test_a_healthy_report_is_short(healthy: Report) -> None:
    lines = render(healthy, "terminal", color=False).splitlines()
    assert lines[0].startswith("healthy")
    assert not any("Not judged" in line for line in lines)


@pytest.mark.parametrize("output", ["terminal", "markdown", "html"])
def test_an_interrupted_reading_is_said_to_be(report: Report, output: Format) -> None:
    assert "interrupted" not in render(report, output)
    report.interrupted = True
    assert "Reading was interrupted" in render(report, output)


@pytest.mark.parametrize("output", ["terminal", "markdown", "html"])
def test_the_runbook_is_a_command_to_copy(report: Report, output: Format) -> None:
    assert "kvdiag runbook expired_remote_read" in render(report, output)


def test_a_narrow_terminal_keeps_each_cause_on_one_line(report: Report) -> None:
    lines = render(report, "terminal", color=False, width=80).splitlines()
    assert any(line.split()[:4] == ["expired_remote_read/declined", "certain", "2", "2"] for line in lines)


@pytest.mark.parametrize("output", FORMATS)
def test_turns_without_a_row_are_said_to_be(report: Report, output: Format) -> None:
    report.without_row = 12345
    shown = render(report, output, turns=True)
    assert (
        "12,345 earlier ones are counted" in shown or '"without_row": 12345' in shown or '"without_row":12345' in shown
    )


@pytest.mark.parametrize(("total", "said"), [(2, False), (9, True)])
def test_turns_that_no_line_names_are_said_to_have_no_row(report: Report, total: int, *, said: bool) -> None:
    report.per_turn = (report.per_turn or [])[:2]
    report.turns.total = total
    assert ("7 of 9 turns have no row: no line names them." in render(report, "terminal", turns=True)) == said
