"""The unit and the image that the project ships: what they say must be what the program takes."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvdiag.cli.router import command
from kvdiag.router.settings import Deadlines

ROUTER = Path(__file__).parents[2] / "router"
UNIT = ROUTER / "kvdiag-router.service"
IMAGE = (ROUTER / "Containerfile").read_text()


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser["Service"]


@pytest.mark.parametrize("key", ["ExecStartPre", "ExecStart"])
def test_the_units_commands_are_taken(key: str) -> None:
    program, verb, *arguments = shlex.split(unit()[key])
    assert (Path(program).name, verb) == ("kvdiag", "router")
    example = str(ROUTER / "router.example.toml")
    given = [example if argument.startswith("/etc/") else argument for argument in arguments]
    checked = CliRunner().invoke(command, [*given, *([] if "--check" in given else ["--check"])])
    assert (checked.exit_code, checked.output) == (0, "settings are usable\n")


def test_the_unit_waits_for_streams_to_end() -> None:
    assert int(unit()["TimeoutStopSec"]) > Deadlines().drain_s


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    here = tmp_path / UNIT.name
    here.write_text(re.sub(r"/opt/kvdiag/bin/kvdiag", sys.executable, UNIT.read_text()))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", here],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (verified.returncode, [line for line in verified.stderr.splitlines() if UNIT.name in line]) == (0, [])


def test_the_image_installs_extras_that_exist_on_a_python_that_is_supported() -> None:
    project = tomllib.loads((ROUTER.parent / "pyproject.toml").read_text())["project"]
    extras = re.search(r"'\.\[([\w,]+)\]'", IMAGE)
    assert extras is not None
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])
    versions = set(re.findall(r"python:(\d+\.\d+)-slim", IMAGE))
    assert [f"Programming Language :: Python :: {version}" in project["classifiers"] for version in versions] == [True]


def test_the_images_entry_point_is_taken() -> None:
    entry = re.search(r"^ENTRYPOINT (\[.*\])$", IMAGE, re.MULTILINE)
    assert entry is not None
    program, verb, *arguments = tomllib.loads(f"entry = {entry[1]}")["entry"]
    assert (Path(program).name, verb) == ("kvdiag", "router")
    engines = ["--prefill", "http://p:1", "--decode", "http://d:1"]
    assert CliRunner().invoke(command, [*arguments, *engines, "--check"]).exit_code == 0
