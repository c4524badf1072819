"""The matrix speaks the vocabulary, leaves none of it out, and every row can be run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks.faults.engines import ENGINES
from benchmarks.faults.matrix import SCENARIOS, section
from benchmarks.faults.scenario import CALM

from kvdiag.causes import CAUSES
from kvdiag.dashboards.alerts import alerts
from kvdiag.dashboards.settings import Settings

if TYPE_CHECKING:
    from benchmarks.faults.scenario import Expected, Scenario

every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


def expectations(scenario: Scenario) -> list[Expected]:
    return [scenario.expected, *([scenario.stock] if scenario.stock else [])]


def test_names_are_unique() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("cause", sorted(CAUSES.keys() - {"first_turn", "remote_hit"}))
def test_every_cause_and_detail_is_provoked(cause: str) -> None:
    expected = {scenario.expected.verdict for scenario in SCENARIOS}
    assert {f"{cause}/{detail}" for detail in CAUSES[cause].details} <= expected
    assert any(verdict.partition("/")[0] == cause for verdict in expected)


@every_scenario
def test_a_scenario_expects_what_the_causes_table_has(scenario: Scenario) -> None:
    for expected in expectations(scenario):
        named = {expected.cause, *expected.or_else, *expected.beside, *expected.must_not} - {"*", "healthy"}
        assert named <= CAUSES.keys()
        assert expected.detail is None or expected.detail in CAUSES[expected.cause].details


@every_scenario
def test_a_scenario_expects_alerts_that_exist(scenario: Scenario) -> None:
    assert {*(scenario.expected.alerts or ())} <= {alert.name for alert in alerts(Settings())}


@every_scenario
def test_a_scenario_runs_on_engines_of_the_right_roles(scenario: Scenario) -> None:
    assert [ENGINES[name].role for name in scenario.engines] == ["prefill", "decode"]


@every_scenario
def test_a_scenario_says_what_is_done_and_has_its_place_on_the_page(scenario: Scenario) -> None:
    assert scenario.what.endswith(".")
    assert section(scenario)


@every_scenario
def test_a_fault_says_how_the_lines_prove_it(scenario: Scenario) -> None:
    for expected in expectations(scenario):
        assert expected.cause in CALM or (expected.why and expected.also_wrong and expected.proof)


def test_engines_that_nobody_uses_are_not_kept() -> None:
    assert {name for scenario in SCENARIOS for name in scenario.engines} == ENGINES.keys()
