"""Every cause has a page that a tired person can follow to its end."""

from __future__ import annotations

import re
import subprocess

import pytest

from kvdiag import runbooks
from kvdiag.causes import CAUSES, Cause
from kvdiag.errors import InputError

PAGES = [runbooks.page(name) for name in runbooks.names()]


def test_there_is_one_page_per_cause_and_one_for_symptoms() -> None:
    assert set(runbooks.names()) == {*CAUSES, runbooks.TRIAGE}, "each cause has a page runbooks/<cause>.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
class TestPage:
    def test_has_the_six_sections_in_order(self, page: runbooks.Page) -> None:
        assert tuple(page.sections) == runbooks.SECTIONS
        assert all(text.strip() for text in page.sections.values())

    def test_every_diagnosis_command_shows_the_output_to_expect(self, page: runbooks.Page) -> None:
        steps = page.steps("Diagnosis")
        assert steps
        assert [step.command for step in steps if not step.expected] == []

    def test_its_fault_can_be_provoked_by_a_command(self, page: runbooks.Page) -> None:
        """`tests/e2e/test_runbooks.py` runs it on a real pair, then the diagnosis."""
        (step,) = page.steps("How to reproduce here")
        assert step.expected

    def test_diagnosis_says_where_to_go_next(self, page: runbooks.Page) -> None:
        assert re.search(r"\(\w+\.md\)|Mitigation|kvdiag runbook|nothing to do|run again", page.sections["Diagnosis"])

    def test_commands_are_valid_shell(self, page: runbooks.Page) -> None:
        script = "\n".join(step.command for section in runbooks.SECTIONS for step in page.steps(section))
        done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr

    def test_links_lead_to_pages(self, page: runbooks.Page) -> None:
        linked = set(re.findall(r"\((\w+)\.md\)", page.text))
        assert linked <= set(runbooks.names())
        assert all(f"[{name}]({name}.md)" in page.text for name in linked)

    def test_title_is_the_name(self, page: runbooks.Page) -> None:
        assert page.text.startswith(f"# {page.name}\n")


@pytest.mark.parametrize("cause", [cause for cause in CAUSES.values() if cause.details], ids=lambda cause: cause.name)
def test_page_names_every_detail_of_its_cause(cause: Cause) -> None:
    assert [detail for detail in cause.details if f"`{detail}`" not in runbooks.page(cause.name).text] == []


def test_a_detail_leads_to_its_causes_page() -> None:
    assert runbooks.page("missing_metadata/consumed").name == "missing_metadata"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("expired_remote_reed", "did you mean expired_remote_read"),
        ("zzz", "choose from: "),
        ("../pyproject", "choose from: "),
        ("missing_metadata/nosuch", "missing_metadata has no detail named 'nosuch'; choose from: no_conversation_id, "),
        ("remote_hit/x", "remote_hit has no detail named 'x'; it has none"),
        ("triage/x", "triage has no detail named 'x'; it has none"),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(name: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        runbooks.page(name)


@pytest.mark.parametrize(
    ("expected", "output", "matches"),
    [
        ('{detail="..."} => ...', '{detail="stale"} => 4 @[1764459000.1]', True),
        ("a\nb", "x a\ny\nb", True),
        ("a\nb", "b\na", True),
        ("a\nb", "a\nc", False),
        ("{} => 0 ...", "{} => 3 @[1]", False),
        ('bidirectional="true"', 'bidirectional="false"', False),
    ],
)
def test_expected_output_is_compared_with_ellipses(expected: str, output: str, matches: bool) -> None:  # noqa: FBT001
    assert runbooks.Step("x", expected).matches(output) is matches
