"""Numbers read the same everywhere, and an unknown one never reads as zero."""

from __future__ import annotations

import pytest

from kvdiag.diagnosis.render import wording
from kvdiag.diagnosis.report import Evidence, Finding, InputSummary


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "?"), (0, "0 s"), (0.0004, "0.4 ms"), (0.25, "250 ms"), (1, "1 s"), (12.345, "12.3 s"), (4000, "4,000 s")],
)
def test_durations(value: float | None, text: str) -> None:
    assert wording.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "?"), (0, "0 B"), (999, "999 B"), (98_304, "98.3 kB"), (2.5e9, "2.5 GB"), (3e15, "3e+03 TB")],
)
def test_sizes(value: float | None, text: str) -> None:
    assert wording.size(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "?"), (0, "0"), (1234567, "1,234,567")])
def test_counts(value: int | None, text: str) -> None:
    assert wording.count(value) == text


@pytest.mark.parametrize(
    ("cause", "detail", "text"),
    [
        ("queueing", "prefill", "waited for a slot: waited on prefill"),
        ("queueing", None, "waited for a slot"),
        ("queueing", "unheard_of", "waited for a slot"),
        ("unheard_of", None, ""),
    ],
)
def test_meanings(cause: str, detail: str | None, text: str) -> None:
    assert wording.meaning(cause, detail) == text


@pytest.mark.parametrize(("count", "text"), [(0, "-"), (1, "a.log:1"), (3, "a.log:1 (+2)")])
def test_the_first_place_says_how_many_more_there_are(count: int, text: str) -> None:
    evidence = [Evidence(path="a.log", line=line, text="") for line in range(1, count + 1)]
    finding = Finding(cause="client", confidence="certain", turns=1, evidence=evidence)
    assert wording.first_place(finding) == text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            InputSummary(path="p", kind="vllm", role="prefill", lines=1000, recognised=9),
            "p: vllm, prefill, 9 of 1,000 lines recognised",
        ),
        (InputSummary(path="p", kind="vllm", lines=1, recognised=0), "p: vllm, 0 of 1 lines recognised"),
        (InputSummary(path="p\x1b", kind="binary", problem="not a log"), "p\\x1b: not a log"),
    ],
)
def test_inputs(source: InputSummary, text: str) -> None:
    assert wording.input_line(source) == text
