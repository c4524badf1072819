"""Whatever a report holds, every output renders, is valid text, and drives neither a terminal nor a browser."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdiag.diagnosis.render import FORMATS, Format, render
from kvdiag.diagnosis.report import (
    Evidence,
    Finding,
    InputSummary,
    NotEvaluated,
    Report,
    Settings,
    TurnCounts,
    TurnReport,
    Verdict,
    Window,
)

HOSTILE = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [
            "\x1b]0;x\x07",
            "\x9b2J",
            "<script>alert(1)</script>",
            '" onload="x',
            "]]>",
            "&lt;",
            "| a | `b",
            "\u202e",
            "\udcff",
            "-->",
        ]
    ),
)
COUNT = st.integers(0, 2**53)
SECONDS = st.none() | st.floats(0, 1e9) | st.just(5e-324)
MAYBE = st.none() | HOSTILE
EVIDENCE = st.lists(st.builds(Evidence, path=HOSTILE, line=COUNT, text=HOSTILE), max_size=5)
CAUSE = st.sampled_from(["remote_hit", "suspect_kv", "client"]) | HOSTILE
CONFIDENCE = st.sampled_from(["certain", "likely", "possible"])
TS = st.sampled_from(["2026-11-29T08:00:00Z", "11-29 08:00:00", "9999-12-31T23:59:59", "0001-01-01T00:00:00"]) | MAYBE

TURN = st.builds(
    TurnReport,
    request_id=HOSTILE,
    conversation=MAYBE,
    turn=st.none() | COUNT,
    ts=TS,
    cause=CAUSE,
    detail=MAYBE,
    confidence=CONFIDENCE,
    slow=st.booleans(),
    prompt_tokens=st.none() | COUNT,
    gap_s=SECONDS,
    ttft_s=SECONDS,
    transfer_bytes=st.none() | COUNT,
    transfer_s=SECONDS,
    evidence=EVIDENCE,
)
FINDING = st.builds(
    Finding,
    cause=CAUSE,
    detail=MAYBE,
    confidence=CONFIDENCE,
    turns=COUNT,
    lost_tokens=st.none() | COUNT,
    lost_seconds=SECONDS,
    evidence=EVIDENCE,
    next_step=HOSTILE,
    runbook=HOSTILE,
)
REPORT = st.builds(
    Report,
    verdict=st.builds(Verdict, cause=CAUSE, detail=MAYBE, confidence=CONFIDENCE, summary=HOSTILE),
    window=st.builds(Window, from_=MAYBE, to=MAYBE),
    turns=st.builds(TurnCounts, total=COUNT),
    findings=st.lists(FINDING, max_size=3),
    not_evaluated=st.lists(st.builds(NotEvaluated, rule=HOSTILE, needs=HOSTILE), max_size=2),
    inputs=st.lists(st.builds(InputSummary, path=HOSTILE, kind=HOSTILE, role=MAYBE, problem=MAYBE), max_size=3),
    settings=st.builds(Settings, decoder_kv_blocks_ttl=SECONDS),
    per_turn=st.none() | st.lists(TURN, max_size=8),
    interrupted=st.booleans(),
)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.mark.parametrize("output", FORMATS)
@settings(max_examples=25, deadline=None)
@given(report=REPORT, turns=st.booleans())
def test_every_output_renders_harmless_text(report: Report, output: Format, *, turns: bool) -> None:
    text = render(report, output, turns=turns, color=False)
    text.encode()
    assert text.endswith("\n")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


@settings(max_examples=25, deadline=None)
@given(report=REPORT)
def test_a_page_holds_no_element_or_handler_from_a_log(report: Report) -> None:
    tags = _Tags()
    tags.feed(render(report, "html", turns=True))
    assert not tags.seen & {"script", "img", "iframe", "a", "link", "object"}
    assert not {name for name in tags.attributes if name.startswith("on") or name in {"href", "src", "style"}}


@settings(max_examples=25, deadline=None)
@given(report=REPORT, turns=st.booleans())
def test_machine_outputs_parse(report: Report, *, turns: bool) -> None:
    json.loads(render(report, "json", turns=turns))
    assert all(isinstance(json.loads(line), dict) for line in render(report, "jsonl", turns=turns).splitlines())
