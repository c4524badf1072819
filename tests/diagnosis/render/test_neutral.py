"""Hostile characters are spelled out; everything else is left alone."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.diagnosis.render.neutral import neutral, neutral_json


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ASCII and ümlaut 漢字", "plain ASCII and ümlaut 漢字"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b31m", "\\x9b31m"),
        ("a\r\nb\tc", "a\\x0d\\x0ab\\x09c"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("\U000e0041", "\\U000e0041"),
        ("\udcff", "\\udcff"),
    ],
)
def test_hostile_characters_are_spelled_out(text: str, shown: str) -> None:
    assert neutral(text) == shown


@given(st.text(st.characters()))
def test_the_result_can_be_written_and_is_printable(text: str) -> None:
    shown = neutral(text)
    shown.encode()
    assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in shown)


@given(st.text())
def test_json_keeps_its_value(text: str) -> None:
    assert json.loads(neutral_json(json.dumps([text], ensure_ascii=False))) == [text]
