"""The fault matrix's most telling rows, in every column; `make faults` runs all of them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import pytest
from benchmarks.faults.engines import ENGINES
from benchmarks.faults.fleet import Fleet
from benchmarks.faults.matrix import SCENARIOS
from benchmarks.faults.rows import row_of
from benchmarks.faults.run import run
from benchmarks.faults.scenario import OF_THIS_MACHINE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.faults.scenario import Scenario

    from kvdiag.localstack import LocalStack, Service

BY_NAME: Final = {scenario.name: scenario for scenario in SCENARIOS}
ON_THE_SHARED_PAIR: Final = (
    "router-restarted",
    "router-ttl-too-short",
    "redis-down",
    "history-forked-without-an-id",
    "request-hedged",
    "client-hangs-up-and-tries-again",
    "first-message-edited",
    "disk-full-for-the-turn-log",
)
ON_A_STOCK_PAIR: Final = ("stock-read-back-expired", "stock-edited-behind-the-router")
SETTLE_S: Final = 4
"""For the exporter to count; none of these rows needs the engines' own sums, which take longer."""


def hold(scenario: Scenario, prefill: Service, decode: Service, folder: Path) -> None:
    """Run a scenario: logs, metrics, alerts, answers and errors must be as it says, whatever a busy machine adds."""
    run(scenario, prefill, decode, folder, settle_s=SETTLE_S)
    assert row_of(scenario, folder, noise=OF_THIS_MACHINE).missed == []


@pytest.mark.parametrize("name", ON_THE_SHARED_PAIR)
def test_a_fault_is_named_and_the_answers_stay_right(stack: LocalStack, tmp_path: Path, name: str) -> None:
    scenario = BY_NAME[name]
    shared = (dataclasses.replace(options, arguments=()) for options in (stack.options.prefill, stack.options.decode))
    assert [*shared] == [ENGINES[one].options for one in scenario.engines]
    hold(scenario, stack.prefills[0], stack.decodes[0], tmp_path / name)


@pytest.fixture(scope="module")
def stock_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Service]]:
    """vLLM as it comes, without anything of kvdiag's."""
    with Fleet(tmp_path_factory.mktemp("stock")) as fleet:
        yield fleet.engines("stock-prefill", "stock-decode")


@pytest.mark.parametrize("name", ON_A_STOCK_PAIR)
def test_a_fault_of_a_stock_pair_is_named(stock_pair: list[Service], tmp_path: Path, name: str) -> None:
    prefill, decode = stock_pair
    hold(BY_NAME[name], prefill, decode, tmp_path / name)
