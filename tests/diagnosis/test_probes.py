"""What the doctor asks is nobody's turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.diagnosis.vllm_lines import DECODE

from kvdiag.diagnosis import Options, classify
from kvdiag.events import TurnRecord

if TYPE_CHECKING:
    from pathlib import Path

LATE = (
    f"{DECODE}\n"
    "(EngineCore pid=2) ERROR 10-14 09:00:01 [f.py:1] Potentially invalid KV blocks for unrecognized request "
    "chatcmpl-kvdiag-probe-1-0000000a were retrieved by a decode worker.\n"
    "(APIServer pid=1) INFO 10-14 09:00:10 [f.py:1] KV Transfer metrics: Num successful transfers=1, Avg xfer time (ms)=20, "
    "Avg MB per transfer=100.0, Num failed transfers=0, Num KV expired reqs=0, Num notifs after expiry=1\n"
)


def test_what_the_doctor_asked_engines_directly_is_nobodys_turn(tmp_path: Path) -> None:
    name = "chatcmpl-kvdiag-probe-0123456789abcdef-0000000a"
    lines = [
        f"(Worker pid=5) DEBUG 11-06 09:00:0{n} [x.py:1] {text} for request {name}"
        for n, text in enumerate(("start_load_kv", "Finished recving KV transfer"))
    ]
    (tmp_path / "prefill.log").write_text("\n".join(lines).replace(name, f"{name} from remote engine e. ", 1) + "\n")
    assert classify([str(tmp_path)], Options(turns=True)).per_turn == []


def test_a_probe_that_the_router_saw_is_marked(tmp_path: Path) -> None:
    record = TurnRecord(
        ts="2026-11-29T20:00:05Z", request_id="kvdiag-probe-1", conversation="c", turn=1, status=200, cause="first_turn"
    )
    (tmp_path / "turns.jsonl").write_bytes(msgspec.json.encode(record) + b"\n")
    assert [turn.probe for turn in classify([str(tmp_path)], Options(turns=True)).per_turn or []] == [True]


@pytest.mark.parametrize("rows", [False, True])
def test_what_the_doctor_asks_is_no_finding(tmp_path: Path, *, rows: bool) -> None:
    known = {"ts": "2026-11-29T20:00:05Z", "conversation": "c", "turn": 2, "status": 200}
    diverged = msgspec.convert(
        known | {"request_id": "kvdiag-probe-2", "cause": "prefix_diverged", "detail": "in_history"}, TurnRecord
    )
    read_back = msgspec.convert(known | {"request_id": "kvdiag-probe-3", "cause": "remote_hit"}, TurnRecord)
    (tmp_path / "decode.log").write_text(LATE)
    (tmp_path / "turns.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, (diverged, read_back))) + b"\n")

    report = classify([str(tmp_path)], Options(turns=rows))

    assert (report.verdict.cause, report.findings, report.turns.reused) == ("healthy", [], 0)
