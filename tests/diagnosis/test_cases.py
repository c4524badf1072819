"""Every incident case is diagnosed as its expected.json says, in every column."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.diagnosis.conftest import Case, Classify


def test_a_case_is_diagnosed_as_expected(case: Case, classify_files: Classify) -> None:
    report, code = classify_files(case.inputs)

    assert case.missed(report, code) == []


def test_the_order_of_the_paths_changes_nothing(case: Case, classify_files: Classify) -> None:
    report, _ = classify_files(case.inputs)
    reversed_report, _ = classify_files(case.inputs[::-1])

    assert reversed_report == report


def test_the_installed_command_prints_the_same_report(classify_files: Classify) -> None:
    folder = Path(__file__).parent.parent / "cases" / "03-expired-remote-read-router-ttl-longer"
    paths = sorted(folder.glob("*.log"))

    done = subprocess.run(
        [sys.executable, "-m", "kvdiag", "classify", *map(str, paths), "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
    )

    report, code = classify_files(paths)
    assert (json.loads(done.stdout), done.returncode, done.stderr) == (report, code, "")
