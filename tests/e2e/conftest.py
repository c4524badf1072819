"""The real pair, started once for all tests that can share it: a start costs about a minute."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.e2e import scraped

from kvdiag.localstack import EngineOptions, LocalStack, StackOptions
from kvdiag.localstack.agent import Agent

if TYPE_CHECKING:
    from collections.abc import Iterator

DECODE_TTL_S = 20
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "pythonic")
UNSPOILT = ("test_doctor.py", "test_turns.py", "test_runbooks.py", "test_dashboards.py")
"""They read the shared pair's counters and logs; the files after them inject faults into it."""
SPOILER = "test_connector.py"
"""Freezes and kills engines: what it leaves on the shared pair lapses only half a minute later."""
IDLE_AT = "idle-at"
"""File that remembers when the stack was up and idle."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    """Return where an item comes in the run: quick tests first, then the real pair before and after it is spoilt."""
    if item.get_closest_marker("e2e") is None:
        return 0
    if item.path.name == SPOILER:
        return 2 + len(UNSPOILT)
    return 1 + (UNSPOILT.index(item.path.name) if item.path.name in UNSPOILT else len(UNSPOILT))


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """Prefill without a prefix cache, so that reuse has to come from decode; a router whose TTL is too long."""
    options = StackOptions(
        prefill=EngineOptions(prefix_caching=False, decode_ttl_s=DECODE_TTL_S, arguments=TOOLS),
        decode=EngineOptions(decode_ttl_s=DECODE_TTL_S, arguments=TOOLS),
        router_arguments=("--handle-ttl", "120", "--no-derive"),
        prometheus=True,
    )
    with LocalStack(_folder(tmp_path_factory), options) as running:
        (running.folder / IDLE_AT).write_text(str(scraped.fresh(running, "vector(1)")))
        warm_up(running)
        yield running


@pytest.fixture(scope="session")
def idle_at(stack: LocalStack) -> float:
    """When everything had been scraped and nobody had talked yet, seconds since the epoch."""
    return float((stack.folder / IDLE_AT).read_text())


def warm_up(stack: LocalStack) -> None:
    """Let each engine compile its kernels on one discarded conversation, so that no test meets them."""
    assert stack.router is not None
    agent = Agent(stack.router.port, "warm-up")
    for _ in range(3):
        agent.say("warm up the engines with a prompt that spans some blocks; " * 20)


def _folder(factory: pytest.TempPathFactory) -> Path:
    """Return where the stack writes its logs; KVDIAG_E2E_LOGS keeps them after the run."""
    kept = os.environ.get("KVDIAG_E2E_LOGS")
    return Path(kept) if kept else factory.mktemp("stack")
