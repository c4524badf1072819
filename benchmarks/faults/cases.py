"""Keeps a scenario's logs as an incident case, with the expectation that was written before it ran."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Final

from benchmarks.faults.journal import tidy
from benchmarks.faults.judge import lines_of, logs_of

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.faults.scenario import Expected, Scenario

LIMIT: Final = 64 << 10
"""Bytes of one case."""


def keep(scenario: Scenario, folder: Path, cases: Path) -> list[Path]:
    """Write the scenario's cases and return their folders."""
    views = {"all": scenario.expected, "stock": scenario.stock}
    return [
        _keep(expected, logs_of(folder, stock=view == "stock"), cases / _name(scenario, view))
        for view in scenario.cases
        if (expected := views[view]) is not None
    ]


def _name(scenario: Scenario, view: str) -> str:
    return f"real-{scenario.name}" + ("-engine-logs-only" if view == "stock" else "")


def _keep(expected: Expected, logs: list[Path], case: Path) -> Path:
    shutil.rmtree(case, ignore_errors=True)
    case.mkdir(parents=True)
    for log in logs:
        text = tidy(log.read_bytes().decode(errors="replace"), log.parents[2])
        (case / log.name).write_text(text, newline="")
    size = sum(path.stat().st_size for path in case.iterdir())
    if size > LIMIT:
        raise ValueError(f"{case.name} has {size} bytes, {LIMIT} are allowed; drive less in its scenario")
    (case / "expected.json").write_text(json.dumps(_expected(expected, case), indent=1) + "\n")
    return case


def _expected(expected: Expected, case: Path) -> dict[str, object]:
    evidence = [
        {"file": one.file, "line": line, "role": one.role} for one in expected.evidence for line in lines_of(one, case)
    ]
    return {
        "cause": expected.cause,
        "detail": expected.detail,
        "acceptable": list(expected.acceptable),
        "must_not": list(expected.must_not),
        "turns": expected.turns,
        "evidence": evidence,
        "why": expected.why or "A run in which everything worked.",
        "also_wrong": list(expected.also_wrong),
    }
