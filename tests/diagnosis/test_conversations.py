"""From a router's lines to the look-up of each turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvdiag.diagnosis import Options, classify
from kvdiag.diagnosis.conversations import EventKind, Outcome, RouterEvent, look_ups
from kvdiag.diagnosis.report import Evidence

if TYPE_CHECKING:
    from pathlib import Path

_ERA = ("proxy.log", 1)


def _event(
    kind: EventKind, at: float, turn: str | None = None, *, handle: str | None = None, era: tuple[str, int] = _ERA
) -> RouterEvent:
    return RouterEvent(kind, at, era, Evidence(path="proxy.log", line=int(at), text=kind), turn, handle)


def _stored(at: float, turn: str) -> RouterEvent:
    return _event("stored", at, handle=f"chatcmpl-{turn}-0000000a")


def _results(events: list[RouterEvent]) -> list[str]:
    return [outcome.result for outcome in look_ups(events)]


@pytest.mark.parametrize(
    ("events", "results"),
    [
        ([_event("miss", 1, "a"), _stored(2, "a"), _event("hit", 3, "b")], ["first_turn", "hit"]),
        (
            [_event("miss", 1, "a"), _event("miss", 9, "b"), _event("miss", 19, "c")],
            ["first_turn", "not_returned", "not_returned"],
        ),
        (
            [_event("miss", 1, "a"), _stored(2, "a"), _event("stale", 460), _event("miss", 460, "b")],
            ["first_turn", "stale"],
        ),
        ([_event("miss", 1, "a"), _stored(2, "a"), _event("miss", 600, "b")], ["first_turn", "stale"]),
        ([_event("miss", 1, "a"), _stored(2, "a"), _event("miss", 60, "b")], ["first_turn", "router_lost_state"]),
        (
            [_event("miss", 1, "a"), _stored(2, "a"), _event("miss", 600, "b", era=("proxy.log", 2))],
            ["first_turn", "router_lost_state"],
        ),
        (
            [_event("miss", 1, "a"), _stored(2, "a"), _event("hit", 3, "b"), _event("miss", 4, "c")],
            ["first_turn", "hit", "consumed"],
        ),
        ([_event("miss", 1, "a"), _event("miss", 2, "b"), _stored(3, "a")], ["first_turn", "first_turn"]),
        ([_event("anonymous", 1, "a"), _event("anonymous", 2, "b")], ["no_conversation_id", "no_conversation_id"]),
    ],
)
def test_the_lines_of_a_conversation_tell_each_look_up(events: list[RouterEvent], results: list[str]) -> None:
    assert _results(events) == results


@pytest.mark.parametrize(
    ("events", "gaps"),
    [
        ([_event("miss", 1, "a"), _stored(2, "a"), _event("hit", 9, "b")], [None, 7.0]),
        ([_event("miss", 1, "a"), _stored(2, "a"), _event("stale", 460), _event("miss", 460, "b")], [None, 458.0]),
        ([_event("stale", 460)._replace(age_s=463.0), _event("miss", 460, "b")], [463.0]),
        ([_event("miss", 1, "a"), _event("miss", 9, "b")], [None, None]),
        ([_event("miss", 1, "a"), _stored(2, "a"), _event("hit", 3, "b"), _event("miss", 9, "c")], [None, 1.0, None]),
        ([_event("miss", 1, "a"), _stored(2, "a"), _event("miss", 9, "b", era=("proxy.log", 2))], [None, None]),
    ],
    ids=["read back", "too late", "too late, by its word", "no handle", "the turn before left none", "restarted"],
)
def test_a_gap_runs_from_the_handle_of_the_turn_before(events: list[RouterEvent], gaps: list[float | None]) -> None:
    assert [outcome.gap_s for outcome in look_ups(events)] == gaps


def test_a_miss_after_a_failed_turn_is_its_effect() -> None:
    events = [_event("miss", 1, "a"), _stored(2, "a"), _event("hit", 3, "b"), _event("miss", 4, "c")]

    last = list(look_ups(events, failed=frozenset({"b"})))[-1]

    assert (last.result, last.certain) == ("consumed", False)


@pytest.mark.parametrize(
    ("failed", "results"),
    [
        ("a", ["first_turn", "first_turn", "not_returned"]),
        ("ab", ["first_turn", "first_turn", "first_turn"]),
        ("b", ["first_turn", "not_returned", "not_returned"]),
    ],
)
def test_a_turn_that_failed_had_no_handle_to_return(failed: str, results: list[str]) -> None:
    events = [_event("miss", 1, "a"), _event("miss", 2, "b"), _event("miss", 3, "c")]

    assert [outcome.result for outcome in look_ups(events, failed=frozenset(failed))] == results


_BROKEN = 'INFO:     192.0.2.9:1 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error'
_PREFILLED = "2026-10-14 09:00:00 [INFO] disagg_proxy: [{turn}] Prefill done in 9ms"
_UNDER_WAY = "2026-10-14 09:00:00 [INFO] disagg_proxy: [{turn}] conv={conversation}: cache MISS"


@pytest.mark.parametrize(
    ("between", "causes"),
    [
        ([], ["upstream_error", "upstream_error"]),
        ([_UNDER_WAY.format(turn="o", conversation="o")], ["first_turn", "first_turn"]),
        ([_PREFILLED.format(turn="t1"), _PREFILLED.format(turn="t2")], ["upstream_error", "upstream_error"]),
        (
            [
                *(_PREFILLED.format(turn=turn) for turn in ("t1", "t2")),
                _UNDER_WAY.format(turn="o", conversation="o"),
            ],
            ["first_turn", "first_turn"],
        ),
    ],
    ids=["alone", "beside another", "of decode", "of decode beside another"],
)
def test_what_misses_after_a_turn_without_an_answer_is_no_lost_handle(
    between: list[str], causes: list[str], tmp_path: Path
) -> None:
    lines = [
        _UNDER_WAY.format(turn="w", conversation="w"),
        _PREFILLED.format(turn="w"),
        "2026-10-14 09:00:00 [INFO] disagg_proxy: conv=w: cached D blocks (remote_request_id=chatcmpl-w-0000000a, blocks=3)",
    ]
    for turn in ("t1", "t2"):
        lines += [_UNDER_WAY.format(turn=turn, conversation="c"), *between, _BROKEN]
    log = tmp_path / "router.log"
    log.write_text("\n".join(lines) + "\n")

    report = classify([str(log)], Options(turns=True))

    assert [(finding.cause, finding.turns) for finding in report.findings] == [("upstream_error", 2)]
    assert [turn.cause for turn in report.per_turn or () if turn.conversation == "c"] == causes


def test_turns_are_numbered_and_cite_their_lines() -> None:
    first, second = look_ups([_event("miss", 1, "a"), _stored(2, "a"), _event("hit", 3, "b", handle="h")])

    assert (first.number, second.number) == (1, 2)
    assert second == Outcome("b", 2, "hit", [Evidence(path="proxy.log", line=3, text="hit")], handle="h", gap_s=1)


@pytest.mark.parametrize(
    "name",
    [
        "x: cache MISS",
        "[b] conv=x: cache MISS#1",
        "[b] conv=x: cache HIT (age=1.0s)",
        "x: sending D's cached blocks to P (remote_request_id=chatcmpl-c-0000000c) ",
        "x: cached D blocks (remote_request_id=chatcmpl-c-0000000c, blocks=7), ",
        "x: stale cache entry (age=463.0s > ttl=450.0s), discarding ",
        "[c] No conversation_id provided",
        "user 42: thread [7] (old)",
        "a" * 257,
        "ä" * 3000,
    ],
)
def test_a_conversation_may_have_any_name(name: str, tmp_path: Path) -> None:
    lines = [
        f"[a] conv={name}: cache MISS",
        "[a] Prefill done in 9ms",
        f"conv={name}: cached D blocks (remote_request_id=chatcmpl-a-0000000a, blocks=3)",
        f"conv={name}: cache HIT (age=9.0s)",
        f"[b] conv={name}: sending D's cached blocks to P (remote_request_id=chatcmpl-a-0000000a)",
        "[b] Prefill done in 9ms",
        f"conv={name}: cached D blocks (remote_request_id=chatcmpl-b-0000000b, blocks=4)",
    ]
    log = tmp_path / "router.log"
    log.write_text("".join(f"2026-10-14 09:00:00 [INFO] disagg_proxy: {line}\n" for line in lines))

    report = classify([str(log)], Options(turns=True))

    assert (report.turns.total, report.turns.first, report.findings) == (2, 1, [])
    assert len({turn.conversation for turn in report.per_turn or ()}) == 1
