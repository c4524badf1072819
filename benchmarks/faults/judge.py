"""What `kvdiag classify` concludes from a scenario's logs, and whether that is what was expected."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvdiag.causes import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from benchmarks.faults.scenario import Evidence, Expected

ENGINE_LOGS: Final = ("prefill.log", "decode.log")
_NO_INPUTS: Final = {"redis.log", "export.log"}


@dataclass(frozen=True)
class Judgement:
    """The verdict on one view of the logs."""

    verdict: str
    """Cause, or cause and detail in one word."""
    missed: list[str]
    """What is not as expected; empty where all is."""


def logs_of(folder: Path, *, stock: bool = False) -> list[Path]:
    """Return the logs of a scenario: all of them, or the engines' own only."""
    files = sorted(path for path in folder.iterdir() if path.suffix in {".log", ".jsonl", ".txt"})
    return [path for path in files if path.name not in _NO_INPUTS and (not stock or path.name in ENGINE_LOGS)]


def classify(paths: list[Path]) -> dict[str, Any]:
    """Return kvdiag's report on these files. Raises RuntimeError where it gives none."""
    command = [sys.executable, "-m", "kvdiag", "classify", *map(str, paths), "--format", "json", "--turns"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(f"kvdiag classify printed no report: {done.stderr.strip()[-300:]}") from None
    return report


def without(noise: AbstractSet[str], report: dict[str, Any]) -> dict[str, Any]:
    """Return a report as it would be without some causes."""
    findings = [finding for finding in report["findings"] if finding["cause"] not in noise]
    if report["verdict"]["cause"] not in noise:
        return report | {"findings": findings}
    first: dict[str, Any] = next(
        (one for one in findings if one["confidence"] != "possible" and one["cause"] not in OUTCOMES), {}
    )
    return report | {"findings": findings, "verdict": first or {"cause": "healthy"}}


def judge(report: dict[str, Any], expected: Expected | None) -> Judgement:
    """Compare a report with what was expected, if anything was."""
    verdict = report["verdict"]
    cause, detail = verdict["cause"], verdict.get("detail")
    missed = list(_missed(report, expected)) if expected is not None else []
    return Judgement(f"{cause}/{detail}" if detail else cause, missed)


def _missed(report: dict[str, Any], expected: Expected) -> Iterator[str]:
    cause, detail = report["verdict"]["cause"], report["verdict"].get("detail")
    findings = report["findings"]
    if cause not in {expected.cause, *expected.or_else}:
        yield f"verdict {cause}"
    if cause == expected.cause and expected.detail not in {None, detail}:
        yield f"detail {detail}"
    loud = {f["cause"] for f in findings if f["confidence"] != "possible"} - OUTCOMES
    banned = loud if "*" in expected.must_not else loud & set(expected.must_not)
    yield from (f"false alarm {name}" for name in sorted(banned))
    counted = next((f["turns"] for f in findings if f["cause"] == expected.cause), None)
    if expected.turns not in {None, counted} and (counted is not None or cause not in expected.or_else):
        yield f"{counted} turns, not {expected.turns}"


def lines_of(evidence: Evidence, folder: Path) -> list[int]:
    """Return the numbers of the lines that match, from 1."""
    path = folder / evidence.file
    if not path.exists():
        return []
    pattern = re.compile(evidence.pattern)
    # As `kvdiag` counts: by LF alone.
    lines = path.read_bytes().decode(errors="replace").split("\n")
    return [number for number, line in enumerate(lines, 1) if pattern.search(line)]
