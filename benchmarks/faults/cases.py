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

LIMIT: Final = 96 << 10
"""Bytes of one case."""


def keep(scenario: Scenario, folder: Path, cases: Path) -> None:
    """Write the scenario's cases: all of its logs, and the engines' own where they are telling."""
    if not scenario.keep:
        return
    _keep(scenario.expected, logs_of(folder), cases / f"real-{scenario.name}")
    if scenario.stock is not None:
        _keep(scenario.stock, logs_of(folder, stock=True), cases / f"real-{scenario.name}-engine-logs-only")


def _keep(expected: Expected, logs: list[Path], case: Path) -> None:
    shutil.rmtree(case, ignore_errors=True)
    case.mkdir(parents=True)
    for log in logs:
        text = tidy(log.read_bytes().decode(errors="replace"), log.parents[2])
        (case / log.name).write_text(text, newline="")
    size = sum(path.stat().st_size for path in case.iterdir())
    if size > LIMIT:
        raise ValueError(f"{case.name} has {size} bytes, {LIMIT} are allowed; drive less in its scenario")
    (case / "expected.json").write_text(json.dumps(_expected(expected, case), indent=1) + "\n")


def _expected(expected: Expected, case: Path) -> dict[str, object]:
    return {
        "cause": expected.cause,
        "detail": expected.detail,
        "acceptable": list(expected.or_else),
        "must_not": expected.must_not,
        "turns": expected.turns,
        "evidence": [
            {"file": one.file, "line": line, "role": one.role} for one in expected.proof for line in lines_of(one, case)
        ],
        "why": expected.why,
        "also_wrong": list(expected.also_wrong),
    }
