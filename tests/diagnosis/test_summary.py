"""Slow turns: a cause only where it explains the time; an engine that is short of CPU is no slow transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from kvdiag.diagnosis import Options, classify
from kvdiag.events import KvEvent, TurnRecord

if TYPE_CHECKING:
    from pathlib import Path

    from kvdiag.diagnosis.report import Report

NORMAL: dict[str, object] = {
    "ts": "2026-11-29T20:00:05.000Z",
    "conversation": "c",
    "turn": 2,
    "lookup": "hit",
    "status": 200,
    "cause": "remote_hit",
    "prompt_tokens": 3000,
    "remote_tokens": 2500,
    "computed_tokens": 500,
    "router_s": 0.001,
    "queue_s": 0.01,
    "read_s": 0.05,
    "prefill_s": 0.3,
    "ttft_s": 0.4,
}


def turns(**last: object) -> bytes:
    """Return a log of ordinary turns and a last one that differs."""
    records = [msgspec.convert(NORMAL | {"request_id": f"r{n}"}, TurnRecord) for n in range(20)]
    records.append(msgspec.convert(NORMAL | {"request_id": "last"} | last, TurnRecord))
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


def moved(size: int, **fields: object) -> bytes:
    known: dict[str, object] = {
        "ts": "2026-11-29T20:00:04.000Z",
        "request_id": "chatcmpl-last-0000000a",
        "role": "prefill",
        "engine_id": "p",
        "kind": "transfer",
        "direction": "decode_to_prefill",
        "bytes": size,
    }
    return msgspec.json.encode(msgspec.convert(known | fields, KvEvent)) + b"\n"


def diagnosed(folder: Path, turn_log: bytes, events: bytes = b"", options: Options = Options()) -> Report:  # noqa: B008 - frozen
    (folder / "turns.jsonl").write_bytes(turn_log)
    if events:
        (folder / "prefill-events.jsonl").write_bytes(events)
    return classify([str(folder)], options)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(
    ("last", "events", "cause"),
    [
        ({"queue_s": 5.0, "prefill_s": 5.2, "ttft_s": 5.3}, b"", "queueing"),
        ({"router_s": 1.9, "ttft_s": 3.7, "prefill_s": 0.3}, b"", "router_overhead"),
        (
            {"read_s": 5.0, "prefill_s": 5.2, "ttft_s": 5.3},
            moved(900_000_000, seconds=4.9, wait_s=5.0),
            "slow_transfer",
        ),
        ({"computed_tokens": 9000, "prompt_tokens": 11500, "prefill_s": 5.2, "ttft_s": 5.3}, b"", "healthy"),
    ],
    ids=["queue", "router", "large read", "no other prompt so long"],
)
def test_what_explains_a_slow_turn_is_named(
    tmp_path: Path, last: dict[str, object], events: bytes, cause: str, *, rows: bool
) -> None:
    assert diagnosed(tmp_path, turns(**last), events, Options(turns=rows)).verdict.cause == cause


@pytest.mark.parametrize(
    ("last", "events"),
    [
        ({"read_s": 1.9, "prefill_s": 2.1, "ttft_s": 2.2}, moved(2_097_152, seconds=1.9, wait_s=1.9)),
        ({"read_s": 1.9, "prefill_s": 2.1, "ttft_s": 2.2, "remote_tokens": 500}, b""),
        ({"prefill_s": 2.1, "ttft_s": 2.2}, b""),
        ({"ttft_s": 2.4}, b""),
        ({}, moved(2_097_152, seconds=0.1, handshake_s=2.9, wait_s=3.0)),
        ({}, moved(4_718_592, seconds=3.0, post_seconds=0.9)),
    ],
    ids=["small read", "few tokens", "computing", "decoding", "first contact", "small read alone"],
)
def test_an_engine_short_of_cpu_raises_no_alarm(tmp_path: Path, last: dict[str, object], events: bytes) -> None:
    report = diagnosed(tmp_path, turns(**last), events)
    assert report.findings == []


def queued_turns(**fields: object) -> bytes:
    """Return turns that are all alike, so that none is slow beside the others."""
    return b"".join(
        msgspec.json.encode(msgspec.convert(NORMAL | fields | {"request_id": f"r{n}"}, TurnRecord)) + b"\n"
        for n in range(8)
    )


def matched(role: str, *, queue_s: float) -> bytes:
    known = {"ts": NORMAL["ts"], "role": role, "engine_id": "e", "kind": "match", "queue_s": queue_s}
    events = (msgspec.convert(known | {"request_id": f"chatcmpl-r{n}-0000000a"}, KvEvent) for n in range(8))
    return b"".join(msgspec.json.encode(event) + b"\n" for event in events)


FULL = (
    "(APIServer pid=1) INFO 11-29 20:0{at}:00 [loggers.py:1] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation "
    "throughput: 90.0 tokens/s, Running: 0 reqs, Waiting: 3 reqs, GPU KV cache usage: 97.0%, Prefix cache hit rate: 0.0%\n"
)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(
    ("logs", "found"),
    [
        ({"turns.jsonl": queued_turns(queue_s=3.0, ttft_s=3.4)}, ("queueing", "prefill", 8, 24.0)),
        ({"turns.jsonl": queued_turns(queue_s=3.0, ttft_s=None, prefill_s=3.3)}, ("queueing", "prefill", 8, 24.0)),
        ({"turns.jsonl": queued_turns(queue_s=1.9, ttft_s=2.4)}, None),
        ({"decode-events.jsonl": matched("decode", queue_s=4.0)}, ("queueing", "decode", 8, 32.0)),
        ({"prefill-events.jsonl": matched("prefill", queue_s=4.0)}, ("queueing", "prefill", 8, 32.0)),
        (
            {
                "turns.jsonl": queued_turns(queue_s=2.5, ttft_s=9.0),
                "decode-events.jsonl": matched("decode", queue_s=6.0),
            },
            ("queueing", "decode", 8, 48.0),
        ),
        (
            {
                "decode-events.jsonl": matched("decode", queue_s=4.0),
                "decode.log": "".join(FULL.format(at=at) for at in range(4)).encode(),
            },
            ("kv_pressure", "retained_blocks", 8, 32.0),
        ),
    ],
    ids=["streams", "no streams", "short", "decode's events", "prefill's events", "both, the longer one", "full cache"],
)
def test_seconds_in_a_queue_are_a_cause_however_long_the_others_wait(
    tmp_path: Path, logs: dict[str, bytes], found: tuple[str, str, int, float] | None, *, rows: bool
) -> None:
    for name, log in logs.items():
        (tmp_path / name).write_bytes(log)
    findings = classify([str(tmp_path)], Options(turns=rows)).findings
    told = [(item.cause, item.detail, item.turns, item.lost_seconds) for item in findings]
    assert told == ([found] if found else [])


def test_time_that_the_new_tokens_do_not_explain_is_not_theirs(tmp_path: Path) -> None:
    (finding,) = diagnosed(tmp_path, turns(prefill_s=9.0, ttft_s=9.1)).findings
    assert (finding.cause, finding.confidence) == ("unexplained", "possible")


def test_with_a_limit_the_largest_part_is_named(tmp_path: Path) -> None:
    report = diagnosed(tmp_path, turns(prefill_s=2.1, ttft_s=2.2), options=Options(slow_s=1.0))
    assert (report.verdict.cause, report.verdict.confidence) == ("compute_bound", "likely")


@pytest.mark.parametrize(("intervals", "cause"), [(2, "healthy"), (8, "slow_transfer")])
def test_small_transfers_tell_of_the_transport_only_where_all_are_slow(
    tmp_path: Path, intervals: int, cause: str
) -> None:
    config = "(APIServer pid=1) INFO 10-14 08:00:00 [f.py:1] non-default args: {'kv_transfer_config': KVTransferConfig(kv_connector='NixlConnector', kv_role='kv_consumer')}\n"
    line = "(APIServer pid=1) INFO 10-14 09:0{at}:00 [f.py:1] KV Transfer metrics: Num successful transfers=1, Avg xfer time (ms)={ms}, Avg post time (ms)=1.0, Avg MB per transfer=0.5\n"
    lines = [line.format(at=at, ms=1900 if at < intervals else 8) for at in range(9)]
    (tmp_path / "decode.log").write_text(config + "".join(lines))
    assert classify([str(tmp_path)]).verdict.cause == cause


@pytest.mark.parametrize("rows", [False, True])
def test_a_turn_that_reused_counts_as_reused_whatever_made_it_slow(tmp_path: Path, *, rows: bool) -> None:
    last = turns(computed_tokens=900, prefill_s=0.39)

    report = diagnosed(tmp_path, last, options=Options(slow_s=0.1, turns=rows))

    assert (report.turns.reused, report.turns.slow) == (21, 21)
    assert sum(finding.slow_turns for finding in report.findings) == 21


def test_slow_first_turns_are_told_apart_for_no_finding_counts_them(tmp_path: Path) -> None:
    log = turns(turn=1, cause="first_turn", lookup="first_turn", remote_tokens=0, ttft_s=0.9, prefill_s=0.8)

    report = diagnosed(tmp_path, log, options=Options(slow_s=0.7))

    assert (report.turns.slow, report.turns.slow_first, report.findings) == (1, 1, [])


@pytest.mark.parametrize(
    ("lookup", "written", "known"),
    [("no_conversation_id", 0, None), ("stale", 2500, 2500), ("hit", 0, 0)],
)
def test_a_router_that_had_no_handle_does_not_know_that_nothing_was_lost(
    tmp_path: Path, lookup: str, written: int, known: int | None
) -> None:
    detail = "incomplete" if lookup == "hit" else lookup
    log = turns(lookup=lookup, cause="missing_metadata", detail=detail, lost_tokens=written, remote_tokens=0)

    report = diagnosed(tmp_path, log, options=Options(turns=True))

    assert report.findings[0].lost_tokens == known
    assert [row.lost_tokens for row in report.per_turn or [] if row.request_id == "last"] == [known]


def test_events_of_transfers_show_slow_set_ups(tmp_path: Path) -> None:
    quick = diagnosed(tmp_path, turns(), moved(1000, handshake_s=0.1, seconds=0.1))

    assert "slow_handshake" not in {rule.rule for rule in quick.not_evaluated}
