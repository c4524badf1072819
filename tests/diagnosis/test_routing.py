"""Logs of other projects' routers: which engines a turn went to, what the router took, what it saw fail."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kvdiag.diagnosis import Options, classify

if TYPE_CHECKING:
    from pathlib import Path

    from kvdiag.diagnosis.report import Report, TurnReport

RUST_ID = "___prefill_addr_198.51.100.21:8100___decode_addr_198.51.100.34:8200_4cf1a6c8f7d94a0d8e5ad0f5c1d1c9ab"
SECONDS = {"prefill": "198.51.100.21:8100", "decode": "198.51.100.34:8200"}

ORCHESTRATED = """\
[2026-12-07 09:01:00,000] INFO: [r1] Sending prefill request to http://198.51.100.21:8100/v1/chat/completions (request.py:412:vllm_router.services.request_service.request)
[2026-12-07 09:01:00,550] INFO: [r1] Routing request to http://198.51.100.34:8200 for decode (request.py:412:vllm_router.services.request_service.request)
"""
DISAGGREGATED = """\
[2026-12-07 09:01:00,550] INFO: r1 prefill time (TTFT): 0.5500 (request.py:512:vllm_router.services.request_service.request)
[2026-12-07 09:01:00,550] INFO: Routing request r1 with session id None to http://198.51.100.21:8100 at 1796720460.55, process time = 0.5600 (request.py:513:vllm_router.services.request_service.request)
[2026-12-07 09:01:00,590] INFO: Routing request r1 with session id None to http://198.51.100.34:8200 at 1796720460.59, process time = 0.0400 (request.py:560:vllm_router.services.request_service.request)
"""
RUST = f"""\
2026-12-06 09:00:41  INFO vllm_router_rs::server: src/server.rs:1046: Starting server on 0.0.0.0:10001
2026-12-06T09:01:00.000Z DEBUG vllm_router_rs::routers::http::vllm_pd_router: src/routers/http/vllm_pd_router.rs:676: \U0001f680 vLLM Stage 1 - Prefill: http://198.51.100.21:8100/v1/chat/completions with request_id: {RUST_ID}
2026-12-06T09:01:00.550Z DEBUG vllm_router_rs::routers::http::vllm_pd_router: src/routers/http/vllm_pd_router.rs:790: \U0001f680 vLLM Stage 2 - Decode: http://198.51.100.34:8200/v1/chat/completions with request_id: {RUST_ID}
"""


def llm_d(second: str, message: str, **fields: object) -> str:
    line = {"level": "info", "ts": f"2026-11-29T09:01:{second}Z", "caller": "x/y.go:1", "msg": message}
    return json.dumps(line | fields) + "\n"


SCHEDULER = llm_d("00.000", "EPP received request", **{"x-request-id": "r1"}) + llm_d(
    "00.050", "Request handled", **{"x-request-id": "r1", "endpoint": "198.51.100.34:8200"}
)
SIDECAR = llm_d("00.100", "retrying prefill request", request_id="r1", target="198.51.100.21:8100", previous_code=503)
REFUSED = SIDECAR + llm_d("00.300", "prefill request failed", request_id="r1", error="prefill returned 500")


def diagnosed(tmp_path: Path, **logs: str) -> Report:
    for name, text in logs.items():
        (tmp_path / f"{name}.log").write_text(text)
    return classify([str(tmp_path)], Options(turns=True))


def the_turn(report: Report, request_id: str = "r1") -> TurnReport:
    (turn,) = [turn for turn in report.per_turn or [] if turn.request_id == request_id]
    return turn


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        (ORCHESTRATED, "r1", "production-stack"),
        (DISAGGREGATED, "r1", "production-stack"),
        (RUST, RUST_ID, "vllm-router"),
        (SCHEDULER + SIDECAR, "r1", "llm-d"),
    ],
)
def test_a_turn_is_shown_with_the_engines_that_it_was_sent_to(tmp_path: Path, text: str, name: str, kind: str) -> None:
    report = diagnosed(tmp_path, router=text)
    turn = the_turn(report, name)
    assert (turn.prefill, turn.decode) == (SECONDS["prefill"], SECONDS["decode"])
    assert [(source.kind, source.role) for source in report.inputs] == [(kind, "router")]
    assert report.turns.total == 1


@pytest.mark.parametrize(
    ("text", "name"),
    [(ORCHESTRATED, "r1"), (DISAGGREGATED, "r1"), (RUST, RUST_ID)],
    ids=["orchestrated", "plain", "rust"],
)
def test_the_prefill_call_is_timed_by_the_routers_clock(tmp_path: Path, text: str, name: str) -> None:
    assert the_turn(diagnosed(tmp_path, router=text), name).prefill_s == pytest.approx(0.55)


@pytest.mark.parametrize(("text", "seconds"), [(DISAGGREGATED, 0.05), (SCHEDULER, 0.05)], ids=["stack", "llm-d"])
def test_what_the_router_took_itself_is_a_part_of_the_turn(tmp_path: Path, text: str, seconds: float) -> None:
    split = the_turn(diagnosed(tmp_path, router=text)).split
    assert split is not None
    assert split.router == pytest.approx(seconds)


def test_stamps_of_whole_seconds_time_nothing(tmp_path: Path) -> None:
    coarse = RUST.replace(".000Z", "Z").replace(".550Z", "Z")
    assert the_turn(diagnosed(tmp_path, router=coarse), RUST_ID).prefill_s is None


@pytest.mark.parametrize(("text", "name"), [(ORCHESTRATED, "r1"), (RUST, RUST_ID), (SCHEDULER, "r1")])
def test_a_turn_is_joined_with_what_the_engines_say(tmp_path: Path, text: str, name: str) -> None:
    prefill = f"(Worker pid=7) WARNING 12-07 09:01:00 [pull_worker.py:161] Declining expired remote read for chatcmpl-{name}-0b1dc90a from engine 1f44d83f.\n"
    report = diagnosed(tmp_path, router=text, prefill=prefill)
    turn = the_turn(report, name)
    assert (turn.cause, turn.decode) == ("expired_remote_read", SECONDS["decode"])


@pytest.mark.parametrize("prefill", ["", "(APIServer pid=7) INFO 12-07 09:01:00 [x.py:1] Starting\n"])
def test_a_refusal_that_nothing_explains_is_the_engines_error(tmp_path: Path, prefill: str) -> None:
    report = diagnosed(tmp_path, router=REFUSED, prefill=prefill)
    assert (report.verdict.cause, report.findings[0].turns) == ("upstream_error", 1)


def test_a_refusal_after_a_decline_is_its_effect(tmp_path: Path) -> None:
    prefill = "(Worker pid=7) WARNING 12-07 09:01:00 [pull_worker.py:161] Declining expired remote read for chatcmpl-r1-0b1dc90a from engine 1f44d83f.\n"
    report = diagnosed(tmp_path, router=REFUSED, prefill=prefill)
    assert [finding.cause for finding in report.findings] == ["expired_remote_read"]


def test_answers_without_params_point_to_a_missing_connector(tmp_path: Path) -> None:
    report = diagnosed(
        tmp_path, sidecar=llm_d("00.300", "warning: missing 'kv_transfer_params' field in prefiller response")
    )
    assert (report.verdict.cause, report.verdict.detail) == ("feature_off", "no_connector")


@pytest.mark.parametrize("text", [ORCHESTRATED, DISAGGREGATED, RUST, SCHEDULER])
def test_a_router_that_tells_nothing_of_reuse_clears_nothing(tmp_path: Path, text: str) -> None:
    verdict = diagnosed(tmp_path, router=text).verdict
    assert (verdict.cause, "add the logs of prefill and decode" in verdict.summary) == ("inconclusive", True)


@pytest.mark.parametrize("name", [7, None, {}, "", "x" * 10_000])
def test_strange_ids_name_no_turn(tmp_path: Path, name: object) -> None:
    report = diagnosed(tmp_path, router=llm_d("00.000", "Request handled", **{"x-request-id": name, "endpoint": 5}))
    assert report.per_turn == []
