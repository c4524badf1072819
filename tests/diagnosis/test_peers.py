"""A peer counts as replaced where another engine answers at its address, not where its state was set up anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.diagnosis.vllm_lines import PREFILL

from kvdiag.diagnosis import Options, classify

if TYPE_CHECKING:
    from pathlib import Path

_MOVED = "KV Transfer metrics: Num successful transfers=1, Avg xfer time (ms)=20, Avg MB per transfer=100.0"
_LOST = "Local NIXL metadata for remote engine d was invalidated; re-handshaking after reads drain."
_CHANGED = "Remote engine at 192.0.2.1:5600 changed from d to e."
_RELEASED = "Released NIXL state for replaced or locally invalid remote engine d."


@pytest.mark.parametrize(
    ("lines", "causes"),
    [
        ([_LOST, _RELEASED], []),
        ([_LOST, _RELEASED, _LOST, _RELEASED], []),
        ([_CHANGED, _RELEASED], ["restarted"]),
        ([_LOST, _RELEASED, _CHANGED], ["restarted"]),
        (["Released NIXL state for replaced remote engine d."], ["restarted"]),
    ],
)
def test_only_another_engine_at_the_address_is_a_restart(lines: list[str], causes: list[str], tmp_path: Path) -> None:
    log = tmp_path / "p.log"
    told = [f"(EngineCore pid=2) INFO 10-14 09:00:01 [base_worker.py:1] {line}" for line in [_MOVED, *lines]]
    log.write_text("\n".join([PREFILL, *told]) + "\n")

    report = classify([str(log)], Options())

    assert [finding.detail for finding in report.findings] == causes
