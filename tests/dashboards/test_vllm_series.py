"""The table of vLLM's series against `/metrics` recorded from real engines (a pair on CPU, after transfers both ways)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from kvdiag.dashboards import vllm_series
from kvdiag.dashboards.vllm_series import Series, Spelling

RECORDED: Final = sorted((Path(__file__).parent / "recorded").glob("*.txt"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_release_exposes_what_the_table_promises_and_no_other_spelling(path: Path) -> None:
    major, minor = re.findall(r"\d+", path.stem)
    release = (int(major), int(minor))
    names = set(re.findall(r"^(vllm:\w+)", path.read_text(), re.MULTILINE))
    for series in vllm_series.SERIES:
        promised = {spelling.name for spelling in series.spellings if spelling.in_release(release)}
        assert {spelling.name for spelling in series.spellings} & names == promised, series.what
        assert promised, series.what


def test_every_recording_is_read() -> None:
    assert {path.stem for path in RECORDED} >= {"vllm-0.32-prefill", "vllm-0.32-decode"}


def test_a_query_asks_for_every_spelling_newest_first() -> None:
    series = Series("x", (Spelling("new"), Spelling("old", until=(0, 12))))
    assert series.query(lambda name: f"sum({name})") == "sum(new) or sum(old)"


@pytest.mark.parametrize(("release", "has"), [((0, 11), True), ((0, 12), False), ((0, 10), False)])
def test_until_is_the_first_release_without(release: vllm_series.Release, has: bool) -> None:  # noqa: FBT001
    assert Spelling("old", since=(0, 11), until=(0, 12)).in_release(release) is has
