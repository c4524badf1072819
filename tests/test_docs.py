"""The generated pages are fresh, and nothing is missing from them."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from kvdiag.causes import CAUSES
from kvdiag.cli import VERBS, cli
from kvdiag.diagnosis.rules import RULES
from kvdiag.doctor import CHECKS, PROBED
from kvdiag.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parent.parent
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "docs.py"))
PAGES: dict[str, Callable[[], str]] = SCRIPT["PAGES"]
STALE = "stale; run: make docs"


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def section(name: str, heading: str) -> str:
    _, found, after = page(name).partition(f"\n## {heading}\n")
    assert found, f"docs/{name} has no {heading}: {STALE}"
    return after.split("\n## ")[0]


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_generated_page_is_fresh(name: str) -> None:
    assert page(name) == PAGES[name](), STALE


@pytest.mark.parametrize(
    "variable", ["GRAFANA_TOKEN", "KVDIAG_API_KEY", "KVDIAG_DASHBOARDS", "PROMETHEUS_URL", "TEMPO_URL", "NO_COLOR"]
)
def test_the_variables_that_are_read_are_explained(variable: str) -> None:
    assert f"| `{variable}` |" in page("configuration.md")


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_and_option_is_explained(verb: str) -> None:
    with click.Context(cli) as context:
        command = cli.get_command(context, verb)
    assert command is not None
    told = section("cli.md", f"`kvdiag {verb}`")
    assert command.help
    for option in (param for param in command.params if isinstance(param, click.Option)):
        assert option.help, f"{verb} {option.opts[0]} has no help"
        assert all(name in told for name in option.opts), STALE


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_ends_its_help_with_examples_that_it_takes(verb: str) -> None:
    with click.Context(cli) as context:
        command = cli.get_command(context, verb)
    assert command is not None
    assert command.epilog, f"give {verb} an epilog with examples"
    examples = re.findall(rf"^  (kvdiag {verb}.*)$", command.epilog, re.MULTILINE)
    assert examples
    for example in examples:
        command.make_context(verb, shlex.split(example)[2:])
        assert f"\n    {example}\n" in page("cli.md"), STALE


@pytest.mark.parametrize("cause", list(CAUSES))
def test_every_cause_and_detail_is_explained(cause: str) -> None:
    known = CAUSES[cause]
    told = section("causes.md", known.name)
    assert known.meaning[1:] in told, STALE
    assert all(f"`{detail}`" in told for detail in known.details), STALE


@pytest.mark.parametrize("rule", [rule.id for rule in RULES])
def test_every_rule_is_explained(rule: str) -> None:
    assert f"| `{rule}` |" in page("causes.md"), STALE


@pytest.mark.parametrize("check", [*(check.name for check in CHECKS), *PROBED])
def test_every_check_is_explained(check: str) -> None:
    assert f"| `{check}` |" in page("cli.md"), STALE


@pytest.mark.parametrize("code", list(ExitCode))
def test_every_exit_code_is_explained(code: ExitCode) -> None:
    assert f"| {code.value} |" in page("cli.md"), STALE


def test_check_mode_names_what_is_stale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main: Callable[[list[str]], int] = SCRIPT["main"]
    namespace = main.__globals__
    kept, namespace["ROOT"] = namespace["ROOT"], tmp_path
    try:
        assert main([]) == 0
        assert main(["--check"]) == 0
        for name in ("docs/metrics.md", "dashboards/boards/overview.json"):
            (tmp_path / name).write_text("as it was")
        assert main(["--check"]) == 1
        assert capsys.readouterr().err == "stale: docs/metrics.md, dashboards/boards/overview.json; run: make docs\n"
    finally:
        namespace["ROOT"] = kept


def test_every_setting_says_what_it_means() -> None:
    rows = [line for line in page("configuration.md").splitlines() if line.startswith("| `")]
    assert len(rows) > 40
    assert not [row for row in rows if row.endswith("|  |")]


def _documents() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "runbooks").glob("*.md")]


@pytest.mark.parametrize("document", _documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        found = (document.parent / target).resolve() if target else document
        assert found.exists(), link
        if anchor and found.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}, link
