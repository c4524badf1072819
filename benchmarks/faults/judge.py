"""What `kvdiag classify` concludes from a scenario's logs, and whether that is what was expected."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.faults.run import FACTS, Facts

from kvdiag.causes import OUTCOMES

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.faults.scenario import Evidence, Expected

_NOT_LOGS: Final = {FACTS, "redis.log", "dump.rdb"}
STOCK: Final = ("prefill.log", "decode.log")


@dataclass(frozen=True)
class Judgement:
    """The verdict on one view of the logs."""

    cause: str
    detail: str | None
    findings: list[str]
    missed: list[str]
    """What is not as expected; empty where all is."""

    @property
    def verdict(self) -> str:
        """Return cause and detail in one word."""
        return f"{self.cause}/{self.detail}" if self.detail else self.cause


def logs_of(folder: Path, *, stock: bool = False) -> list[Path]:
    """Return the logs of a scenario: all of them, or the engines' own only."""
    files = sorted(path for path in folder.iterdir() if path.name not in _NOT_LOGS and path.suffix != ".json")
    return [path for path in files if not stock or path.name in STOCK]


def facts_of(folder: Path) -> Facts:
    """Return what was noted while the scenario ran."""
    return Facts(**json.loads((folder / FACTS).read_text()))


def classify(paths: list[Path]) -> dict[str, Any]:
    """Return kvdiag's report on these files. Raises RuntimeError where it gives none."""
    command = [sys.executable, "-m", "kvdiag", "classify", *map(str, paths), "--format", "json", "--turns"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(f"kvdiag classify printed no report: {done.stderr.strip()[-300:]}") from None
    return report


def judge(expected: Expected, paths: list[Path]) -> Judgement:
    """Classify and compare."""
    report = classify(paths)
    verdict = report["verdict"]
    findings = report["findings"]
    cause, detail = verdict["cause"], verdict.get("detail")
    loud = {f["cause"] for f in findings if f["confidence"] != "possible"} - OUTCOMES
    banned = loud if "*" in expected.must_not else loud & set(expected.must_not)
    counted = next((f["turns"] for f in findings if f["cause"] == expected.cause), None)
    right = cause == expected.cause
    missed = [
        *([] if right or cause in expected.acceptable else [f"verdict {cause}"]),
        *([] if not right or expected.detail in (None, detail) else [f"detail {detail}"]),
        *(f"false alarm {name}" for name in sorted(banned)),
        *([] if expected.turns in (None, counted) else [f"{counted} turns, not {expected.turns}"]),
    ]
    shown = [f"{f['cause']}/{f['detail']} x{f['turns']} ({f['confidence']})" for f in findings]
    return Judgement(cause, detail, shown, missed)


def lines_of(evidence: Evidence, folder: Path) -> list[int]:
    """Return the numbers of the lines that match, from 1."""
    path = folder / evidence.file
    if not path.exists():
        return []
    pattern = re.compile(evidence.pattern)
    # As `kvdiag` counts: by LF alone.
    lines = path.read_bytes().decode(errors="replace").split("\n")
    found = [number for number, line in enumerate(lines, 1) if pattern.search(line)]
    return found if evidence.every else found[:1]
