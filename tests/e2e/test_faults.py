"""The fault matrix's most telling rows; `python -m benchmarks.faults` runs all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from benchmarks.faults.engines import ENGINES
from benchmarks.faults.fleet import Fleet
from benchmarks.faults.judge import judge, logs_of
from benchmarks.faults.matrix import SCENARIOS
from benchmarks.faults.report import Row
from benchmarks.faults.run import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.faults.scenario import Scenario

    from kvdiag.localstack import LocalStack, Service

BY_NAME: Final = {scenario.name: scenario for scenario in SCENARIOS}
ON_THE_SHARED_PAIR: Final = (
    "three-agents-read-back",
    "router-restarted",
    "router-ttl-too-short",
    "two-routers-share-redis",
    "redis-down",
    "request-hedged",
    "client-hangs-up-and-tries-again",
    "first-message-edited",
    "history-compacted",
    "reasoning-stripped",
    "router-forwards-a-part-of-the-handle",
    "disk-full-for-the-turn-log",
    "decode-killed-and-restarted",
)
ON_A_STOCK_PAIR: Final = ("stock-read-back-expired", "stock-handle-used-twice", "stock-edited-behind-the-router")


def missed(scenario: Scenario, prefill: Service, decode: Service, folder: Path) -> list[str]:
    facts = run(scenario, prefill, decode, folder)
    return Row(scenario, facts, judge(scenario.expected, logs_of(folder))).missed


@pytest.mark.parametrize("name", ON_THE_SHARED_PAIR)
def test_a_fault_is_named_and_the_answers_stay_right(stack: LocalStack, tmp_path: Path, name: str) -> None:
    scenario = BY_NAME[name]
    assert (stack.options.prefill, stack.options.decode) == tuple(ENGINES[one].options for one in scenario.engines)
    assert missed(scenario, stack.prefills[0], stack.decodes[0], tmp_path / name) == []


@pytest.fixture(scope="module")
def stock_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Service]]:
    """vLLM as it comes, without anything of kvdiag's."""
    with Fleet(tmp_path_factory.mktemp("stock")) as fleet:
        yield fleet.engines("stock-prefill", "stock-decode")


@pytest.mark.parametrize("name", ON_A_STOCK_PAIR)
def test_a_fault_of_a_stock_pair_is_named(stock_pair: list[Service], tmp_path: Path, name: str) -> None:
    prefill, decode = stock_pair
    assert missed(BY_NAME[name], prefill, decode, tmp_path / name) == []
