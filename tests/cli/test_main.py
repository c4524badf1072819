from __future__ import annotations

import os
import subprocess
import sys
import types
from typing import TYPE_CHECKING

import click
import pytest

import kvdiag
from kvdiag import cli
from kvdiag.errors import InputError, MissingExtraError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "kvdiag", *arguments], capture_output=True, text=True, check=False)


def exit_code(monkeypatch: pytest.MonkeyPatch, body: Callable[[], object]) -> int | str | None:
    """Run a verb made of `body` through main and return the exit code."""
    module = types.ModuleType("kvdiag.cli.probe")
    module.command = click.command(name="probe")(body)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kvdiag.cli.probe", module)
    monkeypatch.setitem(cli.VERBS, "probe", "a verb of this test")
    with pytest.raises(SystemExit) as ended:
        cli.main(["probe"])
    return ended.value.code


def raiser(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("verb", "said"), [("clasify", "did you mean classify?"), ("runbok", "did you mean runbook?"), ("xyz", "'xyz'")]
)
def test_an_unknown_verb_is_wrong_usage_and_suggests_the_nearest(
    capsys: pytest.CaptureFixture[str], verb: str, said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([verb])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("x.log is empty; give another"), 2, "kvdiag: x.log is empty; give another\n"),
        (MissingExtraError("the router", "router"), 2, "in a clone of kvdiag run: pip install '.[router]'"),
        (UnavailableError("no answer"), 4, "kvdiag: no answer\n"),
        (click.UsageError("bad option"), 2, "bad option"),
        (KeyboardInterrupt(), 130, "kvdiag: interrupted\n"),
        (ValueError("a mistake of ours"), 70, "internal error: ValueError: a mistake of ours"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_each_way_to_fail_has_its_code_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, message: str
) -> None:
    assert exit_code(monkeypatch, raiser(error)) == code
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (1, 1), (3, 3)])
def test_what_a_verb_returns_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, result: int | None, code: int) -> None:
    assert exit_code(monkeypatch, lambda: result) == code


def test_a_crash_shows_its_traceback_when_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVDIAG_DEBUG", "1")
    assert exit_code(monkeypatch, raiser(ValueError("ours"))) == 70
    assert "Traceback" in capsys.readouterr().err


def test_every_verb_is_listed_and_has_help() -> None:
    listed = run("--help").stdout
    for verb, summary in cli.VERBS.items():
        assert f"  {verb} " in listed
        assert summary.split()[0] in listed
        done = run(verb, "--help")
        assert done.returncode == 0, done.stderr
        assert f"Usage: kvdiag {verb}" in done.stdout


def test_help_imports_no_verb_and_no_renderer() -> None:
    code = "import sys; sys.argv=['kvdiag','--help']; import kvdiag.cli as c\ntry: c.main()\nexcept SystemExit: pass\n"
    code += "print('LOADED', sorted(m for m in sys.modules if m.startswith('kvdiag.cli.') or m in ('rich', 'msgspec')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED []"


def test_version_and_unknown_verbs() -> None:
    assert run("--version").stdout == f"kvdiag, version {kvdiag.__version__}\n"
    unknown = run("clasify")
    assert unknown.returncode == 2
    assert "No such command 'clasify'" in unknown.stderr


def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "kvdiag", "--help"], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_package_runs_from_any_directory(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvdiag", "--version"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert kvdiag.__version__ in done.stdout
