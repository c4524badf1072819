"""Charts draw every turn that tells enough, and nothing where none does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from kvdiag.causes import CAUSES
from kvdiag.diagnosis.render import charts
from kvdiag.diagnosis.report import LatencySplit, TurnReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdiag.diagnosis.render.svg import Frame
    from kvdiag.diagnosis.report import Report


def _gaps(turns: list[TurnReport]) -> Frame | None:
    return charts.gaps(turns, 480)


CHARTS = [charts.ttft_by_turn, charts.time_line, _gaps, charts.transfers, charts.spent]


def _tips(frame: Frame | None) -> list[str]:
    assert frame is not None
    return [title.text or "" for title in frame.root.iter("title")]


@pytest.mark.parametrize(("chart", "marks"), list(zip(CHARTS[:4], [5, 5, 4, 2], strict=True)))
def test_marks_every_turn_that_tells_enough(
    report: Report, chart: Callable[[list[TurnReport]], Frame | None], marks: int
) -> None:
    assert len(_tips(chart(report.per_turn or []))) == marks


@pytest.mark.parametrize("chart", CHARTS)
def test_draws_nothing_without_figures(chart: Callable[[list[TurnReport]], Frame | None]) -> None:
    bare = TurnReport(
        request_id="r", cause="unexplained", confidence="possible", ts="not a time", gap_s=0, transfer_bytes=0
    )
    assert chart([bare]) is None
    assert chart([]) is None


def test_a_cause_that_no_table_knows_is_drawn(report: Report) -> None:
    turns = report.per_turn or []
    turns[1].cause = "brand_new"
    assert charts.causes_in(turns)[-1] == "brand_new"
    assert len(_tips(charts.gaps(turns, 480))) == 4
    assert any("brand_new" in tip for tip in _tips(charts.time_line(turns)))


def test_a_million_turns_stay_a_page_that_opens(report: Report) -> None:
    turns = (report.per_turn or []) * 20_000
    assert len(_tips(charts.ttft_by_turn(turns))) <= 3000


@pytest.mark.parametrize(("ttl", "label"), [(None, "480 s (vLLM's default)"), (30.0, "keeps blocks 30 s")])
def test_names_the_ttl_that_gaps_are_held_against(report: Report, ttl: float | None, label: str) -> None:
    frame = charts.gaps(report.per_turn or [], ttl)
    assert frame is not None
    assert any(label in (text.text or "") for text in frame.root.iter("text"))


def test_every_cause_has_a_colour_of_its_own() -> None:
    colors = [charts.color(cause) for cause in CAUSES if cause != "unexplained"]
    remedy = "give each cause a colour in `_COLORS` of src/kvdiag/diagnosis/render/charts.py"
    assert len(set(colors)) == len(colors), remedy
    assert charts.color("unexplained") not in colors, remedy


@pytest.mark.parametrize(("dated", "undated", "drawn"), [(3, 0, 3), (0, 3, 3), (3, 1, 3), (1, 3, 3)])
def test_times_with_and_without_a_year_share_no_axis(dated: int, undated: int, drawn: int) -> None:
    stamps = ["2026-11-29T08:00:00Z"] * dated + ["11-29 08:00:00"] * undated
    turns = [TurnReport(request_id="r", cause="remote_hit", confidence="certain", ts=stamp) for stamp in stamps]
    assert len(_tips(charts.time_line(turns))) == drawn


def test_the_slowest_turns_are_stacked_from_their_parts(report: Report) -> None:
    turns = report.per_turn or []
    turns[0].split = LatencySplit(router=0.5, prefill_compute=1.0)
    turns[1].split = LatencySplit(prefill_queue=3.0, decode_unsplit=0.0)
    turns[2].split = LatencySplit()
    tips = _tips(charts.spent(turns))
    assert [tip.partition(";")[0] for tip in tips] == ["prefill queue 3 s", "router 500 ms", "prefill compute 1 s"]
    assert list(charts.part_colors(turns)) == ["router", "prefill queue", "prefill compute"]


def test_only_the_slowest_are_stacked(report: Report) -> None:
    turns = [msgspec.structs.replace((report.per_turn or [])[0], split=LatencySplit(read=n)) for n in range(1, 200)]
    assert [tip.partition(";")[0] for tip in _tips(charts.spent(turns))][:2] == ["read back 199 s", "read back 198 s"]
    assert len(_tips(charts.spent(turns))) == 24
