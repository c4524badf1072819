"""A line is taken apart: wrappers, process, level, time, message."""

from __future__ import annotations

import pytest

from kvdiag.diagnosis.lines import Line, Origin, parse_line, unglue
from kvdiag.diagnosis.scan import scan

_MESSAGE = "Declining expired remote read for chatcmpl-a from engine e."
_VLLM = f"(EngineCore pid=5427) WARNING 10-15 10:03:05 [pull_worker.py:161] {_MESSAGE}"


@pytest.mark.parametrize(
    "raw",
    [
        _VLLM,
        f"WARNING 10-15 10:03:05 [pull_worker.py:161] {_MESSAGE}",
        f"(APIServer pid=1) (EngineCore_DP0 pid=5427) WARNING 10-15 10:03:05 [pull_worker.py:161] {_MESSAGE}",
        f"(VllmWorker rank=0 pid=98473) WARNING 10-15 10:03:05 [nixl_connector.py:161] {_MESSAGE}",
        f"(EngineCore_0 pid=9) (RayWorkerWrapper pid=5427) WARNING 10-15 10:03:05 [f.py:161] {_MESSAGE}",
        f"(EngineCore pid=5427) WARNING 10-15 10:03:05 [distributed/.../nixl/pull_worker.py:161] {_MESSAGE}",
        f"(EngineCore pid=5427) node-7: WARNING 10-15 10:03:05 [pull_worker.py:161] {_MESSAGE}",
        f"\x1b[0;36m(EngineCore pid=5427)\x1b[0;0m \x1b[33mWARNING\x1b[0m \x1b[90m10-15 10:03:05\x1b[0m \x1b[90m[f.py:8]\x1b[0m {_MESSAGE}",
        f"{_VLLM}\r\n",
        f"2026-10-15T10:03:05.1Z stdout F {_VLLM}",
        f"2026-10-15T10:03:05.1Z {_VLLM}",
        f"Oct 15 10:03:05 host vllm[88]: {_VLLM}",
        f"2026-10-15T10:03:05+00:00 host vllm[88]: {_VLLM}",
        f"prefill-1  | {_VLLM}",
        f"dsg-prefill-6c5-x7kq vllm {_VLLM}",
        f"[pod/dsg-prefill-6c5-x7kq/vllm] {_VLLM}",
        f"prefill.log:12:{_VLLM}",
        '{"log": "' + _VLLM + '\\n", "stream": "stdout", "time": "2026-10-15T10:03:05.1Z"}',
        '{"levelname": "WARNING", "asctime": "2026-10-15 10:03:05,1", "name": "vllm.x", "message": "' + _MESSAGE + '"}',
        '(Worker_DP0 pid=1) {"levelname": "WARNING", "name": "vllm.x", "message": "' + _MESSAGE + '"}',
        f"pod-1-abcde vllm 2026-10-15T10:03:05.1Z {_VLLM}",
    ],
)
def test_the_message_is_the_same_whatever_stands_around_it(raw: str) -> None:
    line = parse_line(raw)

    assert (line.origin, line.message, line.level) == ("vllm", _MESSAGE, "WARNING")


@pytest.mark.parametrize(
    ("raw", "origin", "message"),
    [
        ('INFO:     1.2.3.4:5 - "POST /x HTTP/1.1" 200 OK', "access", '1.2.3.4:5 - "POST /x HTTP/1.1" 200 OK'),
        ('(APIServer pid=1) INFO:     1.2.3.4:5 - "GET /"', "access", '1.2.3.4:5 - "GET /"'),
        ("2026-10-14 09:00:02 [INFO] disagg_proxy: conv=a: cache MISS", "proxy", "conv=a: cache MISS"),
        ("2026-11-29 20:52:18 NIXL INFO    _api.py:405 Backend UCX", "native", "Backend UCX"),
        ("E1129 21:26:48.513088   27395 nixl_agent.cpp:1198] postXferReq: x", "native", "postXferReq: x"),
        ("[1745499308.854013] [host:760  :0]   ib_device.c:1332 UCX  ERROR   bad", "native", "bad"),
        (
            "[2026-04-08 14:05:21 TP0] Decode batch, #running-req: 5",
            "bare",
            "[2026-04-08 14:05:21 TP0] Decode batch, #running-req: 5",
        ),
        ("", "bare", ""),
    ],
)
def test_other_layouts_are_told_apart(raw: str, origin: Origin, message: str) -> None:
    line = parse_line(raw)

    assert (line.origin, line.message) == (origin, message)


def test_the_innermost_process_and_its_id_are_kept() -> None:
    line = parse_line(f"(APIServer pid=1) (EngineCore_DP0 pid=72) {_VLLM.partition(') ')[2]}")

    assert (line.process, line.pid) == ("EngineCore_DP0", 72)


def test_the_wrappers_time_wins_where_the_line_names_no_year() -> None:
    line = parse_line(f"2027-01-01T00:00:01Z stdout F {_VLLM}")

    assert line.stamp == parse_line('{"levelname": "INFO", "asctime": "2027-01-01 00:00:01"}').stamp


def test_a_repeated_message_is_counted() -> None:
    line = parse_line(f"Dec 01 23:46:00 host vllm[8801]: message repeated 3 times: [ {_VLLM}]")

    assert (line.message, line.repeated) == (_MESSAGE, 2)


def test_a_quoted_line_is_not_the_line() -> None:
    quoted = f"(APIServer pid=1) INFO 10-15 10:03:05 [logger.py:1] Generated response x: output: '{_VLLM}'"

    assert parse_line(quoted).message.startswith("Generated response")


_SKIPPED = (
    "(Worker pid=7) WARNING 10-15 10:03:05 [base_worker.py:1] Skipping KV post-processing for failed request chatcmpl-a"
)
_BUSY = "(APIServer pid=1) INFO 10-15 10:03:05 [loggers.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 9 reqs, Waiting: 30 reqs"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (_VLLM + _SKIPPED, ["declined", "skipped"]),
        (_VLLM + _SKIPPED + _BUSY, ["declined", "skipped", "load"]),
        (_VLLM + 'INFO:     127.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 500 Error', ["declined", "http_error"]),
        (_BUSY + _VLLM, ["load", "declined"]),
        (_BUSY + _BUSY, ["load", "load"]),
        (f"(APIServer pid=1) INFO 10-15 10:03:05 [x.py:1] Generated response x: output: '{_VLLM}{_SKIPPED}'", []),
        (f"(APIServer pid=1) INFO 10-15 10:03:05 [x.py:1] a tool said:{_VLLM}", []),
        (f"the tool that was asked to look at it said, word for word:{_VLLM}{_SKIPPED}", []),
    ],
)
def test_records_glued_together_are_both_read_and_quoted_ones_are_not(text: str, kinds: list[str]) -> None:
    assert [fact.kind for fact in scan(text.encode() + b"\n").facts] == kinds


def test_a_glued_record_has_its_own_process_and_the_wrappers_label() -> None:
    first, second = unglue(parse_line(f"prefill-1  | {_VLLM}{_SKIPPED}"))

    assert (first.message, second.pid, second.label) == (_MESSAGE, 7, "prefill-1")


def test_records_of_ours_come_back_as_objects() -> None:
    assert parse_line('{"schema": "kvdiag.turn/1", "turn": 2}').record == {"schema": "kvdiag.turn/1", "turn": 2}


def test_an_exception_in_json_is_part_of_the_message() -> None:
    line = parse_line('{"levelname": "ERROR", "name": "vllm.x", "message": "NIXL", "exc_info": "Traceback\\nE: x"}')

    assert line == Line("vllm", "NIXL\nTraceback\nE: x", level="ERROR")
