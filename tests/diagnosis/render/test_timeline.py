"""What `explain` says on a terminal."""

from __future__ import annotations

from kvdiag.diagnosis.render import Style, show
from kvdiag.diagnosis.render.timeline import render
from kvdiag.diagnosis.report import Evidence, LatencySplit, TurnReport
from kvdiag.diagnosis.timeline import Moment, Passage, Timeline


def a_timeline() -> Timeline:
    turn = TurnReport(
        request_id="r-2\x1b[2J",
        turn=2,
        cause="expired_remote_read",
        detail="declined",
        confidence="certain",
        slow=True,
        ttft_s=1.0,
        lost_tokens=1500,
        split=LatencySplit(read=0.1, prefill_compute=0.8, handoff=0.1),
    )
    evidence = Evidence(path="p.log", line=18, text="Declining\x07 expired remote read")
    return Timeline(
        name="c",
        passages=[Passage(turn=turn, moments=[Moment(who=None, at=None, what="was declined", evidence=evidence)])],
    )


def test_a_turn_comes_with_cause_figures_and_moments() -> None:
    lines = render(a_timeline(), Style(color=False)).splitlines()
    assert lines[0].startswith("turn 2  r-2\\x1b[2J  expired_remote_read/declined (certain)")
    assert lines[1] == "  TTFT 1 s, lost 1,500 tokens, slow"
    assert [line.split()[:4] for line in lines if line.strip().startswith("1.")] == [["1.", "?:", "was", "declined"]]
    assert any("p.log:18  Declining\\x07 expired" in line for line in lines)


def test_the_bar_divides_the_time_as_it_was_spent() -> None:
    bar = next(line for line in render(a_timeline(), Style(color=False)).splitlines() if line.startswith("  ["))
    drawn = bar[bar.index("[") + 1 : bar.index("]")]
    assert {part: drawn.count(part) for part in "RCH"} == {"R": 5, "C": 40, "H": 5}
    assert "C prefill compute 800 ms" in bar


def test_json_has_its_schema() -> None:
    assert '"schema": "kvdiag.timeline/1"' in show(a_timeline(), "timeline", "json")
