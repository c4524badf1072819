"""`kvdiag classify` as a command: options, exit codes, where the report goes."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard
from click.testing import CliRunner, Result

from kvdiag.cli.classify import command
from kvdiag.errors import ExitCode, InputError

if TYPE_CHECKING:
    from collections.abc import Callable

CASES = Path(__file__).parent.parent / "cases"
EXPIRED = CASES / "03-expired-remote-read-router-ttl-longer"
HEALTHY = CASES / "01-healthy-bidirectional"


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(a) for a in arguments], standalone_mode=False, catch_exceptions=False)


@pytest.mark.parametrize(
    ("folder", "code"),
    [(HEALTHY, ExitCode.CLEAR), (EXPIRED, ExitCode.FINDINGS), (CASES / "50-empty-file", ExitCode.INCONCLUSIVE)],
)
def test_the_exit_code_tells_the_outcome(folder: Path, code: ExitCode) -> None:
    assert _run(*folder.glob("*.log")).return_value == code


def test_where_nothing_was_recognised_the_inputs_say_why_first(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("hello\n")
    assert _run(notes).stderr == f"kvdiag: {notes}: no line of a known format\n"
    assert _run(notes, *HEALTHY.glob("*.log")).stderr == ""


def test_no_input_that_can_be_read_is_an_error_of_one_line() -> None:
    with pytest.raises(InputError, match=r"^nowhere\.log: no such file or directory$"):
        _run("nowhere.log")


def test_an_empty_directory_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no file"):
        _run(tmp_path)


def test_a_bad_file_among_good_ones_is_named_on_standard_error() -> None:
    result = _run(*EXPIRED.glob("*.log"), "nowhere.log")

    assert result.return_value == ExitCode.FINDINGS
    assert result.stderr == "kvdiag: nowhere.log: no such file or directory\n"


@pytest.mark.parametrize("cut", [gzip.compress, zstandard.compress])
def test_nothing_is_called_healthy_beside_an_input_that_ends_early(
    cut: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    (tmp_path / "decode.log").write_bytes((HEALTHY / "decode.log").read_bytes())
    (tmp_path / "prefill.log.gz").write_bytes(cut((HEALTHY / "prefill.log").read_bytes())[:-9])

    result = _run(tmp_path, "--format", "json")

    report = json.loads(result.stdout)
    named = next(item for item in report["inputs"] if item["path"].endswith(".gz"))
    assert result.return_value == ExitCode.INCONCLUSIVE
    assert "prefill.log.gz" in report["verdict"]["summary"]
    assert (named["kind"], named["cut_short"]) == (("vllm", True) if cut is gzip.compress else ("unreadable", False))
    assert result.stderr.startswith(f"kvdiag: {tmp_path}/prefill.log.gz: compressed file ended")


def test_nothing_is_called_healthy_beside_an_input_that_is_not_there() -> None:
    result = _run(*HEALTHY.glob("*.log"), "nowhere.log")

    assert result.return_value == ExitCode.INCONCLUSIVE
    assert "nowhere.log (no such file or directory)" in result.stdout
    assert "nowhere.log: nowhere.log" not in result.stdout


def test_files_of_others_in_a_folder_do_not_keep_it_from_being_healthy(tmp_path: Path) -> None:
    for log in HEALTHY.glob("*.log"):
        (tmp_path / log.name).write_bytes(log.read_bytes())
    (tmp_path / "notes.txt").write_text("ask the storage team\n")
    (tmp_path / "core").write_bytes(bytes(range(256)) * 9)

    assert _run(tmp_path).return_value == ExitCode.CLEAR


@pytest.mark.parametrize("form", ["terminal", "json", "jsonl", "markdown", "html"])
def test_every_format_names_the_cause(form: str, tmp_path: Path) -> None:
    target = tmp_path / "report"

    result = _run(*EXPIRED.glob("*.log"), "--format", form, "-o", target)

    assert result.stdout == ""
    assert "expired_remote_read" in target.read_text()


def test_a_report_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        _run(*EXPIRED.glob("*.log"), "-o", tmp_path / "absent" / "report.json")


def test_turns_are_listed_on_request() -> None:
    def turns(*options: str) -> object:
        return json.loads(_run(*EXPIRED.glob("*.log"), "--format", "json", *options).stdout)["per_turn"]

    assert turns() is None
    assert "expired_remote_read" in str(turns("--turns"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--slow", "soon"],
        ["--slow", "-1s"],
        ["--slow", "nan"],
        ["--role", "prefill"],
        ["--role", "boss=*"],
        ["--jobs", "0"],
        [],
    ],
)
def test_a_wrong_option_is_refused(arguments: list[str]) -> None:
    paths = [str(EXPIRED)] if arguments else []
    done = subprocess.run(
        [sys.executable, "-m", "kvdiag", "classify", *paths, *arguments], capture_output=True, text=True, check=False
    )

    assert done.returncode == ExitCode.UNUSABLE
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("text", "slow"), [("800ms", 4), ("2s", 1), ("10", 0)])
def test_the_limit_is_a_duration(text: str, slow: int) -> None:
    log = CASES / "router-starved-of-cpu"
    report = json.loads(_run(log, "--format", "json", "--slow", text).stdout)

    assert (report["turns"]["slow"] > 0) == (slow > 0)


def test_standard_input_is_read() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvdiag", "classify", "-", "--format", "json"],
        input=(EXPIRED / "prefill.log").read_bytes(),
        capture_output=True,
        check=False,
    )

    assert json.loads(done.stdout)["verdict"]["cause"] == "expired_remote_read"
    assert done.returncode == ExitCode.FINDINGS


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_empty_file_is_listed(tmp_path: Path, jobs: str) -> None:
    (tmp_path / "prefill.log").touch()
    report = json.loads(_run(tmp_path / "prefill.log", EXPIRED, "--format", "json", "--jobs", jobs).stdout)

    assert [item["problem"] for item in report["inputs"] if item["path"].startswith(str(tmp_path))] == ["empty"]
