"""What is built is what is in the tree, although five packages are reached through links."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINKED = ("connector", "dashboards", "exporters", "router", "runbooks")
DATA = {".json", ".md", ".yaml", ".yml", ".toml", ".html", ".css", ".js"}


@pytest.mark.parametrize("name", LINKED)
def test_each_link_is_relative_and_leads_to_the_folder_at_the_root(name: str) -> None:
    link = ROOT / "src" / "kvdiag" / name
    assert link.readlink() == Path("..", "..", name)
    assert link.resolve() == ROOT / name


@pytest.mark.parametrize("name", LINKED)
def test_linked_folders_are_importable_under_kvdiag_only(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import importlib.util as u; print(u.find_spec({name!r}), u.find_spec('kvdiag.{name}'))",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    bare, ours = done.stdout.split(" ", 1)
    assert bare == "None"
    assert "ModuleSpec" in ours


def source_files() -> set[str]:
    """Return what the wheel must hold: every module and data file below src/kvdiag, links followed."""
    package = ROOT / "src" / "kvdiag"
    found: set[str] = set()
    for folder, subfolders, names in os.walk(package, followlinks=True):
        # The viewer that takes pictures of dashboards is no part of the product.
        subfolders[:] = [name for name in subfolders if name not in {"__pycache__", "viewer", "node_modules"}]
        for name in names:
            path = Path(folder, name)
            if path.suffix == ".py" or path.suffix in DATA or name == "py.typed":
                found.add(str(path.relative_to(ROOT / "src")))
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, then the wheel from it, as a publisher does."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return out


def test_the_wheel_built_from_the_sdist_holds_every_module_and_data_file(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert source_files() - names == set()
    assert {name.split("/")[0] for name in names} == {
        "kvdiag",
        next(n for n in names if "dist-info" in n).split("/")[0],
    }


def test_the_sdist_holds_real_files_where_the_tree_has_links(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = {member.name.split("/", 1)[1]: member for member in archive if "/" in member.name}
    for name in LINKED:
        assert any(path.startswith(f"src/kvdiag/{name}/") and member.isfile() for path, member in members.items())


def test_the_core_imports_without_the_heavy_extras() -> None:
    heavy = ("torch", "vllm", "nixl", "uvloop", "opentelemetry", "grafana_foundation_sdk", "rich", "hyperscan")
    code = f"import sys, kvdiag.cli; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert importlib.util.find_spec("kvdiag.cli") is not None
