"""Turns that went well are counted where they are found; what is said about them elsewhere still counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from kvdiag.diagnosis import Options, classify
from kvdiag.diagnosis.scan import scan
from kvdiag.events import KvEvent, TurnRecord

if TYPE_CHECKING:
    from pathlib import Path

    from kvdiag.diagnosis.report import Report

FELT_S = 0.5
PROXY = "2026-10-01 00:{at:02d}:00 [INFO] disagg_proxy: "


def turn(number: int, **fields: object) -> bytes:
    known: dict[str, object] = {
        "ts": f"2026-11-29T20:{number // 60 % 60:02d}:{number % 60:02d}.000Z",
        "request_id": f"r{number}",
        "conversation": "c",
        "turn": number,
        "status": 200,
        "cause": "remote_hit",
        "prompt_tokens": 2000,
        "ttft_s": 0.2,
    }
    return msgspec.json.encode(TurnRecord(**(known | fields))) + b"\n"  # type: ignore[arg-type]


def event(kind: str, number: int = 1, **fields: object) -> bytes:
    known: dict[str, object] = {
        "ts": "2026-11-29T20:00:00.000Z",
        "request_id": f"chatcmpl-r{number}-0000000a",
        "role": "prefill",
        "engine_id": "p",
        "kind": kind,
    }
    return msgspec.json.encode(KvEvent(**(known | fields))) + b"\n"  # type: ignore[arg-type]


def proxy_turns(count: int, *, slow: int = -1) -> str:
    """Return the proxy's lines about a conversation; turn number `slow` took six seconds."""
    lines = []
    for number in range(count):
        head = PROXY.format(at=number % 60)
        sent = (
            f"[r{number}] conv=c: cache MISS"
            if number == 0
            else f"[r{number}] conv=c: sending D's cached blocks to P (remote_request_id=chatcmpl-r{number - 1}-0000000b)"
        )
        taken = 6000 if number == slow else 200
        lines += [f"{head}{sent}", f"{head}[r{number}] Prefill done in {taken}ms"]
        lines.append(
            f"{head}conv=c: cached D blocks (remote_request_id=chatcmpl-r{number}-0000000b, blocks={100 + number})"
        )
    return "\n".join(lines) + "\n"


def diagnosed(folder: Path, options: Options = Options(), **logs: bytes) -> Report:  # noqa: B008 - frozen
    return classify_logs(folder, logs, options)


def classify_logs(folder: Path, logs: dict[str, bytes], options: Options) -> Report:
    for name, content in logs.items():
        (folder / f"{name}.log").write_bytes(content)
    return classify([str(folder)], options)


@pytest.mark.parametrize(
    "line",
    [
        turn(2, cause="expired_remote_read", detail="declined"),
        turn(2, status=500),
        turn(2, ttft_s=0.5),
        turn(2, ttft_s=None, prefill_s=0.7),
        turn(2, cause=None),
        event("failure", cause="transfer_failed"),
        event("transfer", seconds=0.5),
        event("transfer", seconds=0.1, handshake_s=1.5),
        event("release", cause="expired_handoff"),
        event("match", cause="missing_metadata", detail="stale"),
    ],
)
def test_whatever_happened_is_handed_on(line: bytes) -> None:
    assert [fact.kind for fact in scan(line, FELT_S).facts] == ["record"]


@pytest.mark.parametrize(
    "line", [turn(2), turn(1, cause="first_turn"), event("match", cause="remote_hit"), event("retain")]
)
def test_nothing_but_rows_needs_a_turn_that_went_well(line: bytes) -> None:
    assert scan(line, FELT_S).facts == []
    assert len(scan(line).facts) == 1


def test_the_report_is_that_of_all_turns_read(tmp_path: Path) -> None:
    log = b"".join(
        [turn(1, cause="first_turn"), *map(turn, range(2, 900)), turn(900, ttft_s=9.0, cause="compute_bound")]
    )
    counted = diagnosed(tmp_path, turns=log)
    read = diagnosed(tmp_path, Options(turns=True), turns=log)
    assert (counted.turns, counted.verdict, counted.window, counted.inputs) == (
        read.turns,
        read.verdict,
        read.window,
        read.inputs,
    )
    assert counted.findings == read.findings
    assert (counted.turns.total, counted.turns.first, counted.turns.reused) == (900, 1, 898)


@pytest.mark.parametrize("cause", ["below_threshold", "local_hit"])
@pytest.mark.parametrize("rows", [True, False])
def test_an_outcome_that_has_a_line_comes_with_its_evidence(tmp_path: Path, cause: str, *, rows: bool) -> None:
    log = b"".join(turn(number, cause=cause) for number in range(2, 9))

    (finding,) = diagnosed(tmp_path, Options(turns=rows), turns=log).findings

    assert (finding.cause, finding.turns, finding.evidence[0].line) == (cause, 7, 1)


def test_a_slow_turn_is_judged_against_those_that_were_only_counted(tmp_path: Path) -> None:
    slow = {"ttft_s": 5.0, "prefill_s": 4.9, "router_s": 0.0, "queue_s": 4.8, "read_s": 0.0}
    report = diagnosed(tmp_path, turns=b"".join([*map(turn, range(2, 100)), turn(100, **slow)]))
    assert (report.verdict.cause, report.turns.slow) == ("queueing", 1)


def test_a_lower_limit_makes_more_turns_slow(tmp_path: Path) -> None:
    report = diagnosed(tmp_path, Options(slow_s=0.1), turns=turn(2))
    assert report.turns.slow == 1


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")], ids=["engine first", "router first"])
def test_a_fault_in_another_log_is_the_turns(tmp_path: Path, names: tuple[str, str]) -> None:
    decode = b"(Worker pid=7) ERROR 11-29 20:00:03 [w.py:1] Potentially invalid KV blocks for unrecognized request chatcmpl-r2-708d01a8 were retrieved by a decode worker. They may have expired.\n"
    report = classify_logs(tmp_path, {names[0]: decode, names[1]: turn(2) + turn(3)}, Options())
    assert (report.verdict.cause, report.turns.total, report.turns.reused) == ("suspect_kv", 2, 1)


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")], ids=["connector first", "router first"])
def test_the_routers_word_counts_also_where_it_was_only_counted(tmp_path: Path, names: tuple[str, str]) -> None:
    failed = event("failure", 2, cause="transfer_failed")
    report = classify_logs(tmp_path, {names[0]: failed, names[1]: turn(2)}, Options())
    assert [finding.cause for finding in report.findings] == []


def test_a_part_that_could_not_be_reused_makes_no_miss_of_a_hit() -> None:
    lines = event("match", cause="remote_hit") + event("decline", cause="prefix_diverged", detail="in_response")
    assert scan(lines, FELT_S).facts == []
    assert (
        len(scan(event("match", 2, cause="remote_hit") + event("decline", cause="prefix_diverged"), FELT_S).facts) == 1
    )


def test_hits_of_a_proxy_are_counted_and_add_up_to_the_same_report(tmp_path: Path) -> None:
    log = proxy_turns(1200).encode()
    counted, read = scan(log, FELT_S), scan(log)
    assert len(counted.facts) < len(read.facts) / 3
    few, every = diagnosed(tmp_path, proxy=log), diagnosed(tmp_path, Options(turns=True), proxy=log)
    assert (few.turns, few.verdict, few.inputs) == (every.turns, every.verdict, every.inputs)


def test_a_slow_hit_is_kept_with_the_turn_before_it() -> None:
    found = {
        fact.data.get("id") or fact.data["handle"] for fact in scan(proxy_turns(1200, slow=900).encode(), FELT_S).facts
    }
    assert {"r900", "r899", "chatcmpl-r899-0000000b", "chatcmpl-r900-0000000b"} <= found
    assert "r890" not in found


def test_lines_that_quote_a_record_are_no_record() -> None:
    quoted = b'INFO:     output: {"schema":"kvdiag.turn/1","request_id":"x"}\n'
    assert scan(quoted, FELT_S).facts == []


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(
    "names", [("prefill.log", "proxy.log"), ("z-prefill.log", "proxy.log")], ids=["engine first", "router first"]
)
def test_prefills_word_outweighs_that_a_handle_was_sent(tmp_path: Path, names: tuple[str, str], *, rows: bool) -> None:
    skipped = "".join(
        f"(EngineCore pid=2) DEBUG 11-29 20:00:00 [s.py:1] Skipping remote pull for chatcmpl-r{number}-0000000a: 52 remote tokens < threshold 256\n"
        for number in range(1, 1200, 5)
    )
    logs = {names[0]: skipped.encode(), names[1]: proxy_turns(1200).encode()}
    report = classify_logs(tmp_path, logs, Options(turns=rows))
    assert [(item.cause, item.turns) for item in report.findings] == [("below_threshold", 240)]
