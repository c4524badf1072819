"""Where a turn's time went: told by our own logs, by other routers, by DEBUG lines, or not at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kvdiag.diagnosis import Options, classify
from kvdiag.diagnosis.split import NEEDS
from kvdiag.events import KvEvent, TurnRecord

if TYPE_CHECKING:
    from pathlib import Path

    from kvdiag.diagnosis.report import LatencySplit, Report

import msgspec

UNKNOWN = dict.fromkeys(NEEDS)


def record(**fields: object) -> bytes:
    known: dict[str, object] = {
        "ts": "2026-11-29T20:00:05.000Z",
        "request_id": "r1",
        "conversation": "c",
        "turn": 2,
        "lookup": "hit",
        "status": 200,
        "cause": "remote_hit",
        "prefill_s": 1.0,
        "ttft_s": 1.5,
    }
    return msgspec.json.encode(TurnRecord(**(known | fields)))  # type: ignore[arg-type]


def event(role: str, kind: str, **fields: object) -> bytes:
    name = {"prefill": "chatcmpl-r1-0000000a", "decode": "chatcmpl-r1-0000000b"}[role]
    known: dict[str, object] = {
        "ts": "2026-11-29T20:00:04.000Z",
        "request_id": name,
        "role": role,
        "engine_id": role,
        "kind": kind,
        "direction": "decode_to_prefill" if role == "prefill" else "prefill_to_decode",
    }
    return msgspec.json.encode(KvEvent(**(known | fields)))  # type: ignore[arg-type]


def vllm(stamp: str, message: str) -> bytes:
    """Return a line of vLLM's JSON formatter."""
    line = {
        "asctime": f"2026-11-29 20:00:{stamp}",
        "levelname": "DEBUG",
        "name": "vllm.x",
        "process": 7,
        "message": message,
    }
    return json.dumps(line).encode()


def diagnosed(tmp_path: Path, **logs: list[bytes]) -> Report:
    for name, lines in logs.items():
        (tmp_path / f"{name}.log").write_bytes(b"\n".join(lines) + b"\n")
    return classify([str(tmp_path)], Options(turns=True))


def split_of(report: Report) -> LatencySplit:
    (turn,) = [turn for turn in report.per_turn or [] if turn.request_id == "r1"]
    assert turn.split is not None
    return turn.split


def parts(split: LatencySplit) -> dict[str, float | None]:
    return {part: None if (value := getattr(split, part)) is None else round(value, 3) for part in NEEDS}


def test_our_turn_log_alone_tells_router_queue_read_and_compute(tmp_path: Path) -> None:
    split = split_of(diagnosed(tmp_path, turns=[record(router_s=0.1, queue_s=0.6, read_s=0.3)]))
    told = {"router": 0.1, "prefill_queue": 0.6, "read": 0.3, "prefill_compute": 0.1}
    assert parts(split) == UNKNOWN | told
    assert split.decode_unsplit == pytest.approx(0.4)


def test_decodes_events_tell_the_hand_off_from_the_first_token(tmp_path: Path) -> None:
    handed = event("decode", "transfer", seconds=0.05, wait_s=0.1)
    split = split_of(diagnosed(tmp_path, turns=[record(router_s=0.1, queue_s=0.6, read_s=0.3)], decode=[handed]))
    assert split.handoff == 0.1
    assert split.decode_first_token == pytest.approx(0.3)
    assert split.decode_unsplit is None


def test_prefills_events_tell_queue_and_read_without_any_router(tmp_path: Path) -> None:
    lines = [event("prefill", "match", cause="remote_hit", queue_s=0.25), event("prefill", "transfer", wait_s=0.05)]
    report = diagnosed(tmp_path, prefill=lines)
    assert parts(split_of(report)) == UNKNOWN | {"prefill_queue": 0.25, "read": 0.05}
    assert report.latency.needs.keys() == {"router", "prefill_compute", "handoff", "decode_first_token"}


def test_an_older_turn_log_divides_no_further_than_it_can(tmp_path: Path) -> None:
    split = split_of(diagnosed(tmp_path, turns=[record()]))
    assert parts(split) == UNKNOWN
    assert (split.prefill_unsplit, split.decode_unsplit) == (1.0, 0.5)


DEBUG = (
    (
        "00,100",
        "Received request chatcmpl-r1: params: SamplingParams(extra_args={'kv_transfer_params': {'do_remote_decode': True}}).",
    ),
    ("00,100", "Added request chatcmpl-r1-0000000a."),
    ("01,000", "start_load_kv for request chatcmpl-r1-0000000a from remote engine e. Num local_block_ids: 1. "),
    ("01,250", "Finished recving KV transfer for request chatcmpl-r1-0000000a"),
)


def test_debug_lines_with_milliseconds_tell_queue_and_read(tmp_path: Path) -> None:
    split = split_of(diagnosed(tmp_path, prefill=[vllm(stamp, text) for stamp, text in DEBUG]))
    assert parts(split) == UNKNOWN | {"prefill_queue": 0.9, "read": 0.25}


def test_whole_seconds_tell_nothing_below_two(tmp_path: Path) -> None:
    lines = [f"(Worker pid=7) DEBUG 11-29 20:00:{stamp[:2]} [a.py:1] {text}".encode() for stamp, text in DEBUG]
    report = diagnosed(tmp_path, prefill=lines)
    assert [turn.split for turn in report.per_turn or []] == [None]


def test_two_hosts_clocks_are_never_subtracted(tmp_path: Path) -> None:
    prefill = [vllm(stamp, text) for stamp, text in DEBUG[:2]]
    decode = [
        vllm("09,000", "start_load_kv for request chatcmpl-r1-0000000b from remote engine e. Num local_block_ids: 1. ")
    ]
    report = diagnosed(tmp_path, prefill=prefill, decode=decode)
    assert [turn.split for turn in report.per_turn or []] == [None]


@pytest.mark.parametrize(
    ("fields", "cause", "detail"),
    [
        ({"router_s": 2.0, "queue_s": 0.1, "read_s": 0.1}, "router_overhead", None),
        ({"router_s": 0.1, "queue_s": 2.0, "read_s": 0.1}, "queueing", "prefill"),
        ({"router_s": 0.1, "queue_s": 0.1, "read_s": 2.0}, "slow_transfer", "decode_to_prefill"),
        ({"router_s": 0.1, "queue_s": 0.1, "read_s": 0.1, "prefill_s": 2.5}, "compute_bound", None),
    ],
)
def test_the_largest_part_of_a_slow_turn_is_its_cause(
    tmp_path: Path, fields: dict[str, float], cause: str, detail: str | None
) -> None:
    (tmp_path / "turns.jsonl").write_bytes(record(**({"prefill_s": 2.2, "ttft_s": 3.0} | fields)) + b"\n")
    report = classify([str(tmp_path)], Options(slow_s=1.0, turns=True))
    assert (report.verdict.cause, report.verdict.detail) == (cause, detail)
    assert [finding.turns for finding in report.findings] == [1]


METRICS = """vllm:request_success_total{engine="0"} %d
vllm:generation_tokens_total{engine="0"} %d
vllm:request_queue_time_seconds_sum{engine="0"} %f
vllm:request_queue_time_seconds_count{engine="0"} %d
"""


def test_counters_give_averages_and_say_that_they_are_no_more(tmp_path: Path) -> None:
    report = diagnosed(tmp_path, prefill=[(METRICS % (10, 10, 5.0, 10) + METRICS % (30, 30, 45.0, 30)).encode()])
    (average,) = report.latency.averages
    assert (average.parts, average.mean_s, average.requests) == (["prefill_queue", "read"], 2.0, 20)
    assert (average.role, average.since) == ("prefill", "first scrape")
