"""How `kvdiag demo` begins and ends; the run between is `tests/e2e`'s."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from kvdiag.cli.demo import command, next_steps
from kvdiag.diagnosis.options import Options
from kvdiag.diagnosis.pipeline import classify

CASES = Path(__file__).parents[1] / "cases"
LATE = CASES / "real-partial-reads-one-expired-orderly-shutdown"


def test_a_folder_in_use_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "turns.jsonl").touch()
    result = CliRunner().invoke(command, ["--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "is not empty; remove it or choose another folder with --out" in result.output


def test_ends_with_commands_about_the_first_finding_of_this_run() -> None:
    report = classify([str(LATE)], Options(turns=True))
    steps = [line.strip() for line in next_steps(report, LATE, "kvdiag")]
    finding = report.findings[0]
    turn = next(turn for turn in report.per_turn or () if (turn.cause, turn.detail) == (finding.cause, finding.detail))
    assert steps[1:] == [
        f"kvdiag classify {LATE} --format html -o report.html",
        f"kvdiag explain {turn.request_id} {LATE}",
        f"kvdiag runbook {finding.runbook}",
    ]


def test_without_turns_the_report_remains() -> None:
    folder = CASES / "50-empty-file"
    steps = list(next_steps(classify([str(folder)], Options(turns=True)), folder, "/opt/kvdiag"))
    assert steps[1:] == [f"  /opt/kvdiag classify {folder} --format html -o report.html"]
