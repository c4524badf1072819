"""The fault matrix's most telling rows; `python -m benchmarks.faults` runs all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from benchmarks.faults.engines import ENGINES
from benchmarks.faults.fleet import Fleet
from benchmarks.faults.judge import classify, logs_of
from benchmarks.faults.matrix import SCENARIOS
from benchmarks.faults.run import run

from kvdiag.causes import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.faults.scenario import Scenario

    from kvdiag.localstack import LocalStack, Service

BY_NAME: Final = {scenario.name: scenario for scenario in SCENARIOS}
ON_THE_SHARED_PAIR: Final = (
    "unnamed-conversations-recognised",
    "router-restarted",
    "router-ttl-too-short",
    "two-routers-share-redis",
    "redis-down",
    "request-hedged",
    "client-hangs-up-and-tries-again",
    "first-message-edited",
    "history-compacted",
    "router-forwards-a-part-of-the-handle",
    "disk-full-for-the-turn-log",
)
ON_A_STOCK_PAIR: Final = ("stock-read-back-expired", "stock-handle-used-twice", "stock-edited-behind-the-router")
OF_THIS_MACHINE: Final = frozenset({"slow_transfer", "compute_bound", "queueing", "unexplained"})
"""What a busy test machine does to any run; none of the scenarios above is about time."""


def hold(scenario: Scenario, prefill: Service, decode: Service, folder: Path) -> None:
    """Run a scenario; its fault must be the first one found, its clients and answers as well off as it says."""
    facts = run(scenario, prefill, decode, folder)
    assert facts.errors == scenario.errors
    assert scenario.wrong_text or facts.different == 0
    expected = scenario.expected
    faults = telling(classify(logs_of(folder)))
    if expected.cause == "healthy":
        assert faults == []
        return
    first = faults[0]
    assert first["cause"] in {expected.cause, *expected.acceptable}
    named = next(fault for fault in faults if fault["cause"] == expected.cause)
    assert (named["detail"], named["turns"]) == (expected.detail, expected.turns)
    assert not {fault["cause"] for fault in faults} & set(expected.must_not)


def telling(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the findings that are sure, and not owed to a busy machine."""
    return [
        finding
        for finding in report["findings"]
        if finding["confidence"] != "possible" and finding["cause"] not in OUTCOMES | OF_THIS_MACHINE
    ]


@pytest.mark.parametrize("name", ON_THE_SHARED_PAIR)
def test_a_fault_is_named_and_the_answers_stay_right(stack: LocalStack, tmp_path: Path, name: str) -> None:
    scenario = BY_NAME[name]
    assert (stack.options.prefill, stack.options.decode) == tuple(ENGINES[one].options for one in scenario.engines)
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
