"""A log that holds a stretch twice proves no more than it does once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.diagnosis.test_wrapping import is_plain

from kvdiag.diagnosis.facts import Fact
from kvdiag.diagnosis.replay import Replay

if TYPE_CHECKING:
    from pathlib import Path

    from tests.diagnosis.conftest import Case, Classify


def fact(text: str, stamp: float | None) -> Fact:
    return Fact("released", 1, "", "vllm", 7, stamp, {}, text)


def fresh(*facts: tuple[str, float | None]) -> list[str]:
    return [found.text for found in Replay().fresh([fact(text, stamp) for text, stamp in facts])]


@pytest.mark.parametrize(
    ("facts", "kept"),
    [
        ([("a", 1), ("b", 2), ("a", 1), ("b", 2)], "ab"),
        ([("a", 1), ("b", 2), ("a", 1), ("b", 2), ("c", 3)], "abc"),
        ([("a", 1), ("b", 2), ("c", 3), ("b", 2), ("c", 3), ("d", 4)], "abcd"),
        ([("start", None), ("a", 1), ("b", 2), ("start", None), ("a", 1), ("b", 2)], ["start", "a", "b"]),
        (
            [("a", 1), ("x", None), ("b", 2), ("end", None), ("a", 1), ("x", None), ("b", 2), ("end", None)],
            ["a", "x", "b", "end"],
        ),
    ],
)
def test_a_stretch_told_again_is_left_out(facts: list[tuple[str, float | None]], kept: list[str]) -> None:
    assert fresh(*facts) == list(kept)


@pytest.mark.parametrize(
    "facts",
    [
        [("a", 1), ("a", 1), ("a", 1)],
        [("a", 1), ("b", 9), ("c", 2), ("d", 3)],
        [("x", None), ("x", None), ("x", None)],
        [("start", None), ("a", 1), ("start", None), ("b", 2)],
    ],
    ids=["equal lines of one second", "a clock set back", "no stamps", "a restart under the same process id"],
)
def test_what_only_looks_like_it_is_kept(facts: list[tuple[str, float | None]]) -> None:
    assert fresh(*facts) == [text for text, _ in facts]


def test_blocks_are_one_log() -> None:
    replay = Replay()
    assert len(replay.fresh([fact("a", 1), fact("b", 2)])) == 2
    assert replay.fresh([fact("a", 1)]) == []
    assert [found.text for found in replay.fresh([fact("b", 2), fact("c", 3)])] == ["c"]


def test_a_case_whose_logs_hold_everything_twice_is_diagnosed_the_same(
    case: Case, tmp_path: Path, classify_files: Classify
) -> None:
    if not all(map(is_plain, case.inputs)):
        return
    twice = [tmp_path / path.name for path in case.inputs]
    for path, copy in zip(case.inputs, twice, strict=True):
        content = path.read_bytes().rstrip(b"\n") + b"\n" if path.stat().st_size else b""
        copy.write_bytes(content + content)

    report, code = classify_files(twice)

    missed = case.missed(report, code, evidence=False)
    timed = all(source["from"] for source in report["inputs"])
    # Without a single stamp nothing tells a repetition from more of the same.
    assert [column for column in missed if timed or not column.startswith("count")] == []
