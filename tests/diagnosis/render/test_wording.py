"""Numbers read the same everywhere, and an unknown one never reads as zero."""

from __future__ import annotations

import pytest

from kvdiag.diagnosis.render import wording
from kvdiag.diagnosis.report import Average, Evidence, Finding, InputSummary, LatencySplit, TurnCounts, Verdict


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
    ("turns", "text"),
    [
        (TurnCounts(total=1, first=1), "1 turn: 1 first, 0 later, 0 reused, 0 slow"),
        (TurnCounts(total=2, slow=2, slow_first=1), "2 turns: 0 first, 0 later, 0 reused, 2 slow (1 slow first turn, computed in full)"),
    ],
)  # fmt: skip
def test_turns(turns: TurnCounts, text: str) -> None:
    assert wording.turns_line(turns) == text


def test_an_inconclusive_verdict_is_not_graded() -> None:
    verdicts = (Verdict(cause=cause, confidence="possible", summary="s") for cause in ("inconclusive", "healthy"))
    assert [wording.verdict_line(verdict) for verdict in verdicts] == ["inconclusive: s", "healthy (possible): s"]


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


@pytest.mark.parametrize(("narrow", "text"), [(False, "logs/a.log:1"), (True, "a.log:1")])
def test_a_narrow_place_leaves_the_folder_out(*, narrow: bool, text: str) -> None:
    evidence = [Evidence(path="logs/a.log", line=1, text="")]
    finding = Finding(cause="client", confidence="certain", turns=1, evidence=evidence)
    assert wording.first_place(finding, narrow=narrow) == text


@pytest.mark.parametrize(
    ("split", "text", "longest"),
    [
        (None, "", "?"),
        (LatencySplit(), "", "?"),
        (
            LatencySplit(prefill_queue=1.2, read=0.03, decode_unsplit=0.0),
            "prefill queue 1.2 s, read back 30 ms",
            "prefill queue 1.2 s",
        ),
        (
            LatencySplit(router=0.5, prefill_unsplit=2.0),
            "router 500 ms, prefill as a whole 2 s",
            "prefill as a whole 2 s",
        ),
    ],
)
def test_where_the_time_went(split: LatencySplit | None, text: str, longest: str) -> None:
    assert wording.spent(split) == text
    assert wording.longest(split) == longest


def test_an_average_says_that_it_is_one() -> None:
    average = Average(
        role="prefill", parts=["prefill_queue", "read"], mean_s=2.0, requests=20, metric="m", since="start"
    )
    assert wording.average_line(average) == (
        "prefill queue and read back: 2 s on average over 20 requests of prefill since the start (m); of no single turn"
    )


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            InputSummary(path="p", kind="vllm", role="prefill", lines=1000, recognised=9),
            "p: vllm, prefill, 9 of 1,000 lines recognised",
        ),
        (
            InputSummary(path="p", kind="vllm", lines=40, recognised=20, repeated=10),
            "p: vllm, 20 of 40 lines recognised, 10 of them a second time",
        ),
        (InputSummary(path="p", kind="vllm", lines=1, recognised=0), "p: vllm, 0 of 1 lines recognised"),
        (InputSummary(path="p\x1b", kind="binary", problem="not a log"), "p\\x1b: not a log"),
    ],
)
def test_inputs(source: InputSummary, text: str) -> None:
    assert wording.input_line(source) == text
