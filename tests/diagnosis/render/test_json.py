"""JSON and JSON lines: the report schema, parseable, harmless when printed."""

from __future__ import annotations

import json

import msgspec
import pytest

from kvdiag.diagnosis.render import Format, render
from kvdiag.diagnosis.report import Report


def test_json_round_trips(report: Report) -> None:
    assert msgspec.json.decode(render(report, "json", turns=True), type=Report) == report


def test_json_is_the_report_schema(report: Report) -> None:
    read = json.loads(render(report, "json"))
    assert read["schema"] == "kvdiag.report/1"
    assert read["window"] == {"from": "2026-11-29T20:00:00Z", "to": "2026-11-29T20:10:00Z"}
    assert read["per_turn"] is None


@pytest.mark.parametrize("output", ["json", "jsonl"])
def test_holds_no_character_that_drives_a_terminal(report: Report, output: Format) -> None:
    text = render(report, output, turns=True)
    assert not set(text) & set("\x1b\x9b\u202e\u200b\x07\r")


@pytest.mark.parametrize("output", ["json", "jsonl"])
def test_a_file_name_that_is_not_utf8_still_prints(report: Report, output: Format) -> None:
    report.inputs[0].path = "bad\udcff.log"
    assert "bad?.log" in render(report, output)


def test_characters_beyond_the_basic_plane_survive(report: Report) -> None:
    report.verdict.summary = "tag \U000e0041 and smile \U0001f600"
    assert json.loads(render(report, "json"))["verdict"]["summary"] == report.verdict.summary


def test_jsonl_has_one_record_a_line(report: Report) -> None:
    records = [json.loads(line) for line in render(report, "jsonl", turns=True).splitlines()]
    kinds = [record["record"] for record in records]
    assert kinds == ["verdict", "window", "turns", *["finding"] * 2, "not_evaluated", *["input"] * 2, *["turn"] * 5]
    assert {record["schema"] for record in records} == {"kvdiag.report/1"}
