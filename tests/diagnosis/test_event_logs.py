"""The connectors' event logs without a router's: every option and wrapper comes to the same conclusion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import pytest

from kvdiag.diagnosis import Options, classify
from kvdiag.events import KvEvent, TurnRecord

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REQUEST: Final = "chatcmpl-r1-0000000a"
HIT: Final = {"kind": "match", "direction": "decode_to_prefill", "tokens": 8704, "cause": "remote_hit"}
FIRST: Final = {"kind": "match", "direction": "decode_to_prefill", "tokens": 0, "cause": "first_turn"}
LAPSE: Final = {"kind": "release", "direction": "prefill_to_decode", "release": "expired"}

WRAPPED: Final[dict[str, Callable[[bytes], bytes]]] = {
    "plain": lambda line: line,
    "cri": lambda line: b"2026-11-18T09:05:47.039Z stdout F " + line,
    "compose": lambda line: b"prefill-1  | " + line,
    "spaced": lambda line: msgspec.json.format(line, indent=0).replace(b"\n", b""),
}


def event(**fields: object) -> bytes:
    known: dict[str, object] = {
        "ts": "2026-11-18T09:05:47.039Z",
        "request_id": REQUEST,
        "role": "prefill",
        "engine_id": "e",
        "conversation": "c",
        "turn": 6,
    }
    return msgspec.json.encode(msgspec.convert(known | fields, KvEvent))


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED.keys())
@pytest.mark.parametrize(
    ("events", "found"),
    [
        (
            [HIT, {"kind": "failure", "cause": "peer_unreachable", "detail": "restarted"}],
            [("peer_unreachable", "restarted", 1, None)],
        ),
        ([HIT, {"kind": "failure", "cause": "transfer_failed"}], [("transfer_failed", None, 1, None)]),
        ([FIRST, LAPSE], [("expired_handoff", None, 1, None)]),
        ([FIRST, LAPSE | {"cause": "expired_handoff"}], [("expired_handoff", None, 1, None)]),
        ([HIT, LAPSE | {"release": "read"}], []),
        (
            [{"kind": "decline", "cause": "prefix_diverged", "detail": "in_history", "lost_tokens": 700}],
            [("prefix_diverged", "in_history", 1, 700)],
        ),
    ],
    ids=[
        "peer gone",
        "read failed",
        "lease lapsed",
        "lease lapsed, said so",
        "read",
        "declined",
    ],
)
def test_what_became_of_a_request_outweighs_its_match(
    tmp_path: Path,
    events: list[dict[str, object]],
    found: list[tuple[str, str | None, int, int | None]],
    wrap: Callable[[bytes], bytes],
    *,
    rows: bool,
) -> None:
    (tmp_path / "events.log").write_bytes(b"".join(wrap(event(**fields)) + b"\n" for fields in events))
    report = classify([str(tmp_path)], Options(turns=rows))
    assert [(item.cause, item.detail, item.turns, item.lost_tokens) for item in report.findings] == found


@pytest.mark.parametrize("rows", [False, True])
def test_a_turn_whose_match_was_only_counted_is_one_turn(tmp_path: Path, *, rows: bool) -> None:
    lines = [
        event(request_id=f"chatcmpl-r{n}-0000000a", **fields)
        for n in range(50)
        for fields in (HIT, {"kind": "failure", "cause": "transfer_failed"})
    ]
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    report = classify([str(tmp_path)], Options(turns=rows))
    assert (report.turns.total, report.findings[0].turns) == (50, 50)


@pytest.mark.parametrize(
    ("causes", "verdict", "findings"),
    [
        ([("missing_metadata", "holdout")] * 9, "healthy", ["missing_metadata"]),
        (
            [("missing_metadata", "holdout")] * 9 + [("expired_remote_read", "declined")],
            "expired_remote_read",
            ["expired_remote_read", "missing_metadata"],
        ),
    ],
    ids=["alone", "beside a fault"],
)
def test_an_experiment_is_shown_and_is_no_fault(
    tmp_path: Path, causes: list[tuple[str, str]], verdict: str, findings: list[str]
) -> None:
    records = [
        TurnRecord(
            ts="2026-11-18T09:00:00Z",
            request_id=f"r{n}",
            conversation="c",
            turn=2,
            status=200,
            cause=cause,
            detail=detail,
        )
        for n, (cause, detail) in enumerate(causes)
    ]
    (tmp_path / "turns.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, records)) + b"\n")
    report = classify([str(tmp_path)])
    assert (report.verdict.cause, [item.cause for item in report.findings]) == (verdict, findings)
