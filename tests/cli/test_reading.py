"""Reading for a verb: whole or not at all, with a bar where somebody watches."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kvdiag.cli import reading
from kvdiag.diagnosis.report import Report, TurnCounts, Verdict, Window

if TYPE_CHECKING:
    from pathlib import Path


def test_half_a_log_is_not_reasoned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    half = Report(
        verdict=Verdict(cause="healthy", confidence="possible", summary=""),
        window=Window(),
        turns=TurnCounts(),
        findings=[],
        not_evaluated=[],
        inputs=[],
        interrupted=True,
    )
    monkeypatch.setattr(reading, "classify", lambda *_: half)
    with pytest.raises(KeyboardInterrupt):
        reading.with_turns(["x.log"])


@pytest.mark.parametrize("verb", ["classify", "tune"])
def test_the_bar_goes_to_the_terminal_and_not_into_the_output(tmp_path: Path, verb: str) -> None:
    log = tmp_path / "x.log"
    log.write_text("INFO 11-29 08:00:00 [x.py:1] nothing\n" * 1000)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kvdiag", verb, str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs) as running:
        os.close(theirs)
        assert running.stdout is not None
        out = running.stdout.read()
        running.wait(timeout=60)
    assert b"reading" in os.read(ours, 65536)
    os.close(ours)
    assert b"\x1b" not in out
