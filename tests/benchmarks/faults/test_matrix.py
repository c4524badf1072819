"""The matrix speaks the vocabulary, and every row can be run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks.faults.engines import ENGINES
from benchmarks.faults.matrix import SCENARIOS

from kvdiag.causes import CAUSES

if TYPE_CHECKING:
    from benchmarks.faults.scenario import Expected, Scenario


def expectations(scenario: Scenario) -> list[Expected]:
    return [scenario.expected, *([scenario.stock] if scenario.stock else [])]


def test_names_are_unique() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_scenario_expects_what_the_causes_table_has(scenario: Scenario) -> None:
    for expected in expectations(scenario):
        named = {expected.cause, *expected.acceptable, *expected.must_not} - {"*", "healthy"}
        assert named <= CAUSES.keys()
        assert expected.detail is None or expected.detail in CAUSES[expected.cause].details


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_scenario_runs_on_engines_of_the_right_roles(scenario: Scenario) -> None:
    assert [ENGINES[name].role for name in scenario.engines] == ["prefill", "decode"]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_kept_fault_says_how_the_lines_prove_it(scenario: Scenario) -> None:
    kept = [scenario.expected] * ("all" in scenario.cases) + [scenario.stock] * ("stock" in scenario.cases)
    for expected in kept:
        assert expected is not None
        quiet = expected.must_not == ("*",)
        assert quiet or (expected.why and expected.also_wrong and expected.evidence)


def test_engines_that_nobody_uses_are_not_kept() -> None:
    assert {name for scenario in SCENARIOS for name in scenario.engines} == ENGINES.keys()
