"""Expiry counters and lines say what they can: whose they are, and what they add to what turns already tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.diagnosis.vllm_lines import DECODE, PREFILL

from kvdiag.diagnosis import Options, classify

if TYPE_CHECKING:
    from pathlib import Path

    from kvdiag.diagnosis.report import Report

ERROR_500 = 'INFO:     192.0.2.1:9 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error'
LOAD = "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 0 reqs"
UNREAD = "NIXL transfer failure: transfer_failed | Context: {'failure_type': 'transfer_failed', 'request_id': 'chatcmpl-a-0000000b'}"


def _line(text: str) -> str:
    return f"(EngineCore pid=2) WARNING 10-14 09:00:01 [f.py:1] {text}"


def _released(name: str) -> str:
    return _line(
        f"Releasing expired KV blocks for request chatcmpl-{name}-0000000a which were retrieved by 0 remote worker(s) before lease expired."
    )


def _counted(expired: int, failed: int = 0) -> str:
    return _line(
        "KV Transfer metrics: Num successful transfers=1, Avg xfer time (ms)=20, Avg MB per transfer=9.0, "
        f"Num failed transfers={failed}, Num KV expired reqs={expired}, Num notifs after expiry=0"
    )


def _report(folder: Path, files: dict[str, list[str]]) -> Report:
    for name, lines in files.items():
        (folder / f"{name}.log").write_text("\n".join(lines) + "\n")
    return classify([str(folder / f"{name}.log") for name in files], Options())


@pytest.mark.parametrize(
    ("files", "causes"),
    [
        ({"p": [PREFILL, _counted(2)]}, [("expired_remote_read", "possible", 2)]),
        ({"p": [PREFILL, _released("a"), _counted(1)], "d": [DECODE, _line(UNREAD)]}, [("transfer_failed", "certain", 1)]),
        ({"p": [PREFILL, _released("a"), _counted(3)], "d": [DECODE, _line(UNREAD)]}, [("transfer_failed", "certain", 1), ("expired_remote_read", "possible", 2)]),
        ({"p": [PREFILL, _counted(1)], "d": [DECODE, _line(UNREAD)]}, [("transfer_failed", "certain", 1)]),
        ({"p": [PREFILL, _released("a"), _counted(1)]}, [("expired_handoff", "certain", 1)]),
        ({"d": [DECODE, _released("a"), _counted(3)]}, []),
    ],
)  # fmt: skip
def test_a_counter_adds_what_no_line_tells(
    files: dict[str, list[str]], causes: list[tuple[str, str, int]], tmp_path: Path
) -> None:
    found = _report(tmp_path, files).findings

    assert [(finding.cause, finding.confidence, finding.turns) for finding in found] == causes


@pytest.mark.parametrize(
    ("lines", "causes"),
    [
        ([ERROR_500, _counted(1), ERROR_500, _counted(1)], [("expired_remote_read", "likely", 2)]),
        ([ERROR_500, _counted(1), _counted(1)], [("expired_remote_read", "likely", 2)]),
        ([ERROR_500, ERROR_500, _counted(1)], [("upstream_error", "likely", 2), ("expired_remote_read", "possible", 1)]),
        ([ERROR_500, _counted(0), _counted(1)], [("upstream_error", "likely", 1), ("expired_remote_read", "possible", 1)]),
        ([ERROR_500, _counted(1, failed=1)], [("transfer_failed", "likely", 1), ("upstream_error", "likely", 1), ("expired_remote_read", "possible", 1)]),
    ],
)  # fmt: skip
def test_an_error_is_the_effect_of_the_expiry_counted_with_it(
    lines: list[str], causes: list[tuple[str, str, int]], tmp_path: Path
) -> None:
    found = _report(tmp_path, {"p": [PREFILL, *lines]}).findings

    assert [(finding.cause, finding.confidence, finding.turns) for finding in found] == causes


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        ([_released("a"), _released("b")], "inconclusive"),
        ([_line(LOAD), _counted(4)], "inconclusive"),
        ([_line(LOAD), _counted(0)], "healthy"),
        ([PREFILL, _released("a")], "expired_handoff"),
        ([DECODE, _line(LOAD), _released("a")], "healthy"),
        ([_line("Declining expired remote read for chatcmpl-b-0000000b from engine d."), _released("a")], "expired_handoff"),
    ],
)  # fmt: skip
def test_what_expired_in_a_log_without_a_role_is_not_judged(lines: list[str], verdict: str, tmp_path: Path) -> None:
    report = _report(tmp_path, {"node": lines})

    assert report.verdict.cause == verdict
    assert ("--role" in report.verdict.summary) == (verdict == "inconclusive")


@pytest.mark.parametrize(("others", "verdict"), [([], "inconclusive"), ([_line(LOAD)], "healthy")])
def test_the_ends_of_conversations_alone_are_too_little_to_call_healthy(
    others: list[str], verdict: str, tmp_path: Path
) -> None:
    assert _report(tmp_path, {"d": [DECODE, _released("a"), *others]}).verdict.cause == verdict


def test_blocks_whose_handle_a_router_got_are_decodes(tmp_path: Path) -> None:
    proxy = [
        f"2026-10-14 09:00:00 [INFO] disagg_proxy: {text}"
        for text in (
            "[a] conv=c: cache MISS",
            "conv=c: cached D blocks (remote_request_id=chatcmpl-a-0000000a, blocks=3)",
        )
    ]

    assert _report(tmp_path, {"node": [_released("a")], "router": proxy}).verdict.cause == "healthy"
