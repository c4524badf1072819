"""A turn's row names the cause that the report names for it, also where only the whole logs tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.diagnosis.vllm_lines import BUSY, DECODE, PREFILL

from kvdiag.diagnosis import Options, classify

if TYPE_CHECKING:
    from pathlib import Path

    from kvdiag.diagnosis.report import Report

QUEUE = [BUSY.format(at=at, waiting=30, usage=20) for at in (10, 20, 30)]
FULL = [BUSY.format(at=at, waiting=30, usage=99) for at in (10, 20, 30)]
_SLOW_READ = (
    "(APIServer pid=1) INFO 10-14 09:00:10 [f.py:1] KV Transfer metrics: Num successful transfers=1, Avg xfer time (ms)=6000, "
    "Avg MB per transfer=100.0, Num failed transfers=0, Num KV expired reqs=0"
)
ERROR_503 = 'INFO:     192.0.2.1:9 - "POST /v1/chat/completions HTTP/1.1" 503 Service Unavailable'


def _proxy(*turns: tuple[int, int]) -> list[str]:
    """Return a router's log of one conversation, each turn of which took so many ms on prefill and added so many blocks."""
    lines = ["[t0] conv=a: cache MISS", "[t0] Prefill done in 260ms"]
    blocks = 200
    for number, (taken, added) in enumerate(turns):
        held = f"remote_request_id=chatcmpl-t{number}-0000000a"
        lines += [
            f"conv=a: cached D blocks ({held}, blocks={blocks})",
            f"[t{number + 1}] conv=a: sending D's cached blocks to P ({held})",
            f"[t{number + 1}] Prefill done in {taken}ms",
        ]
        blocks += added
    lines.append(f"conv=a: cached D blocks (remote_request_id=chatcmpl-t{len(turns)}-0000000a, blocks={blocks})")
    return [f"2026-10-14 09:00:00 [INFO] disagg_proxy: {line}" for line in lines]


def _line(text: str, level: str = "WARNING") -> str:
    return f"(EngineCore pid=2) {level} 10-14 09:00:01 [f.py:1] {text}"


def _lapsed(name: str) -> str:
    return _line(
        f"Releasing expired KV blocks for request chatcmpl-{name}-0000000a which were retrieved by 0 remote worker(s) before lease expired."
    )


def _report(folder: Path, files: dict[str, list[str]]) -> Report:
    for name, lines in files.items():
        (folder / f"{name}.log").write_text("\n".join(lines) + "\n")
    return classify([str(folder)], Options(turns=True))


_USUAL, _SLOW, _LONG = (150, 2), (7800, 2), (7800, 4000)


@pytest.mark.parametrize(
    ("slow", "engines", "cause", "confidence"),
    [
        (_SLOW, {}, ("unexplained", None), "possible"),
        (_SLOW, {"p": [PREFILL, *QUEUE]}, ("queueing", "prefill"), "likely"),
        (_SLOW, {"p": [PREFILL, *FULL]}, ("kv_pressure", "capacity"), "likely"),
        (_SLOW, {"p": [PREFILL, _SLOW_READ, _SLOW_READ]}, ("slow_transfer", "decode_to_prefill"), "likely"),
        (_LONG, {}, ("compute_bound", None), "likely"),
    ],
)
def test_a_slow_turn_has_the_cause_that_a_rule_found(
    slow: tuple[int, int], engines: dict[str, list[str]], cause: tuple[str, str | None], confidence: str, tmp_path: Path
) -> None:
    report = _report(tmp_path, {"r": _proxy(*[_USUAL] * 7, slow, *[_USUAL] * 3), **engines})

    (row,) = [turn for turn in report.per_turn or () if turn.slow]
    assert ((row.cause, row.detail), row.confidence, row.request_id) == (cause, confidence, "t8")
    assert row.evidence
    assert [(finding.cause, finding.detail) for finding in report.findings] == [cause]
    assert (report.turns.slow, report.findings[0].slow_turns) == (1, 1)


def test_long_turns_among_many_are_slow_by_every_count(tmp_path: Path) -> None:
    report = _report(tmp_path, {"r": _proxy(*[_USUAL, _USUAL, _LONG] * 6)})

    rows = [turn for turn in report.per_turn or () if turn.slow]
    (finding,) = report.findings
    assert {turn.cause for turn in rows} == {finding.cause} == {"compute_bound"}
    assert report.turns.slow == len(rows) == finding.slow_turns == finding.turns == 6


@pytest.mark.parametrize(
    ("decode", "cause", "turns"),
    [
        ([], ("expired_handoff", None), 2),
        (QUEUE, ("queueing", "decode"), 30),
        (FULL, ("kv_pressure", "capacity"), 30),
        ([_line("EngineCore encountered a fatal error.", "ERROR")], ("upstream_error", None), 2),
        ([_line("EngineCore encountered a fatal error.", "ERROR"), ERROR_503], ("upstream_error", None), 2),
        ([_line("Request chatcmpl-x failed (engine dead).", "ERROR"), _line("EngineCore encountered a fatal error.", "ERROR")], ("upstream_error", None), 3),
    ],
)  # fmt: skip
def test_a_lease_that_lapsed_has_the_cause_that_kept_decode_away(
    decode: list[str], cause: tuple[str, str | None], turns: int, tmp_path: Path
) -> None:
    report = _report(tmp_path, {"p": [PREFILL, _lapsed("a"), _lapsed("b")], "d": [DECODE, *decode]})

    rows = {turn.request_id: (turn.cause, turn.detail) for turn in report.per_turn or ()}
    assert {rows["a"], rows["b"]} == {cause}
    assert [(finding.cause, finding.detail, finding.turns) for finding in report.findings] == [(*cause, turns)]
