"""A report with everything in it, hostile text included."""

from __future__ import annotations

import pytest

from kvdiag.diagnosis.report import (
    Evidence,
    Finding,
    InputSummary,
    NotEvaluated,
    Report,
    TurnCounts,
    TurnReport,
    Verdict,
    Window,
)

HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202eevil\u200b\x9b31m<script>alert(1)</script>\r\n| `x` <img src=//e.example/x onerror=alert(1)>"


def turn_report(
    number: int, cause: str, *, detail: str | None = None, ttft_s: float = 0.2, **more: object
) -> TurnReport:
    fields: dict[str, object] = {
        "request_id": f"chatcmpl-r{number}",
        "conversation": "c-9f2",
        "turn": number,
        "ts": f"2026-11-29T20:00:{number:02d}.000Z",
        "cause": cause,
        "detail": detail,
        "confidence": "certain",
        "ttft_s": ttft_s,
        "prompt_tokens": 1000 * number,
    }
    return TurnReport(**(fields | more))  # type: ignore[arg-type]


@pytest.fixture
def report() -> Report:
    declined = Evidence(path="prefill.log", line=42, text="Declining expired remote read for R from engine E.")
    return Report(
        verdict=Verdict(
            cause="expired_remote_read",
            detail="declined",
            confidence="certain",
            summary="2 of 4 later turns recomputed 3,000 tokens",
        ),
        window=Window(from_="2026-11-29T20:00:00Z", to="2026-11-29T20:10:00Z"),
        turns=TurnCounts(total=5, first=1, later=4, reused=2, slow=2),
        findings=[
            Finding(
                cause="expired_remote_read",
                detail="declined",
                confidence="certain",
                turns=2,
                slow_turns=2,
                lost_tokens=3000,
                lost_seconds=1.25,
                evidence=[declined, *(Evidence(path="prefill.log", line=line, text="again") for line in (50, 60, 70))],
                next_step="raise decoder_kv_blocks_ttl",
                runbook="expired_remote_read",
            ),
            Finding(
                cause="unexplained",
                confidence="possible",
                turns=1,
                evidence=[Evidence(path="evil\x1b[31m.log", line=7, text=HOSTILE)],
            ),
        ],
        not_evaluated=[NotEvaluated(rule="queueing", needs="the engine's periodic lines")],
        inputs=[
            InputSummary(
                path="prefill.log", kind="vllm", role="prefill", lines=1200, recognised=90, from_="2026-11-29T20:00:00Z"
            ),
            InputSummary(path="<b>core.bin", kind="binary", problem="not a log: binary data"),
        ],
        per_turn=[
            turn_report(1, "first_turn"),
            turn_report(2, "remote_hit", gap_s=5.0, transfer_bytes=1 << 20, transfer_s=0.02),
            turn_report(
                3,
                "expired_remote_read",
                detail="declined",
                ttft_s=0.9,
                slow=True,
                gap_s=500.0,
                lost_tokens=1500,
                evidence=[declined],
            ),
            turn_report(
                4, "expired_remote_read", detail="declined", ttft_s=1.1, slow=True, gap_s=600.0, lost_tokens=1500
            ),
            turn_report(5, "remote_hit", gap_s=8.0, transfer_bytes=3 << 20, transfer_s=0.05, request_id=HOSTILE),
        ],
    )


@pytest.fixture
def healthy() -> Report:
    return Report(
        verdict=Verdict(cause="healthy", confidence="certain", summary="every rule was judged and is clear"),
        window=Window(),
        turns=TurnCounts(total=3, first=1, later=2, reused=2),
        findings=[],
        not_evaluated=[],
        inputs=[InputSummary(path="d.log", kind="vllm", lines=3, recognised=3)],
    )
