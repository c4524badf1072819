"""How an incident case is judged, for every test that classifies cases."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from click.testing import CliRunner

from kvdiag.causes import OUTCOMES
from kvdiag.cli.classify import command

if TYPE_CHECKING:
    from collections.abc import Sequence

    class Classify(Protocol):
        """Classify files; return the report and the exit code."""

        def __call__(self, paths: Sequence[Path]) -> tuple[dict[str, Any], int]: ...


CASES = Path(__file__).parent.parent / "cases"
NOT_INPUTS = frozenset({"expected.json", "source.txt"})


@dataclass(frozen=True)
class Case:
    """One incident: its logs and what must be concluded from them."""

    folder: Path

    @property
    def expected(self) -> dict[str, Any]:
        expected: dict[str, Any] = json.loads((self.folder / "expected.json").read_text())
        return expected

    @property
    def inputs(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if path.name not in NOT_INPUTS)

    def missed(self, report: dict[str, Any], exit_code: int, *, evidence: bool = True) -> list[str]:
        """Return the columns in which a report falls short, each with what it said."""
        want = self.expected
        verdict = report["verdict"]
        accepted = verdict["cause"] in want["acceptable"]
        columns = {
            "cause": verdict["cause"] == want["cause"] or accepted,
            # Another cause that the lines support has details of its own.
            "detail": want["detail"] in {None, verdict.get("detail")} or verdict["cause"] != want["cause"],
            "quiet": not self._banned(report),
            "count": want["turns"] is None or self._counted(report) == want["turns"],
            "evidence": not evidence or self._cites(report),
            "exit": exit_code in self._exits() or accepted,
        }
        got = f"{verdict['cause']}/{verdict.get('detail')} x{self._counted(report)} exit {exit_code}"
        return [f"{name}: {got}" for name, good in columns.items() if not good]

    def _banned(self, report: dict[str, Any]) -> set[str]:
        loud = {f["cause"] for f in report["findings"] if f["confidence"] != "possible"} - OUTCOMES
        banned = set(self.expected["must_not"])
        return loud if "*" in banned else loud & banned

    def _counted(self, report: dict[str, Any]) -> int | None:
        return next((f["turns"] for f in report["findings"] if f["cause"] == self.expected["cause"]), None)

    def _cites(self, report: dict[str, Any]) -> bool:
        hoped = {(line["file"], line["line"]) for line in self.expected["evidence"]}
        seen = {(Path(e["path"]).name, e["line"]) for f in report["findings"] for e in f["evidence"]}
        return not hoped or self.expected["cause"] in {"healthy", "inconclusive"} or bool(hoped & seen)

    def _exits(self) -> set[int]:
        cause = self.expected["cause"]
        special = {"healthy": {0}, "inconclusive": {2, 3}}
        return special.get(cause, {0, 1} if cause in OUTCOMES else {1})


ALL_CASES = [Case(path.parent) for path in sorted(CASES.glob("*/expected.json"))]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that asks for a `case` on all of them."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", ALL_CASES, ids=lambda case: case.folder.name)


@pytest.fixture
def classify_files() -> Classify:
    """Run `kvdiag classify --format json` in this process; return its report and its exit code."""

    def run(paths: Sequence[Path]) -> tuple[dict[str, Any], int]:
        result = CliRunner().invoke(
            command, [*map(str, paths), "--format", "json"], standalone_mode=False, catch_exceptions=False
        )
        report: dict[str, Any] = json.loads(result.stdout)
        return report, int(result.return_value)

    return run
