"""The local stack's own ways with vLLM."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvdiag.localstack import LocalStack


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_an_engine_may_compute_on_every_core(stack: LocalStack, role: str) -> None:
    (engine,) = stack.prefills if role == "prefill" else stack.decodes
    assert engine.pid is not None
    threads = list(_threads(engine.pid))
    assert len(threads) > 1
    assert {frozenset(os.sched_getaffinity(thread)) for thread in threads} == {frozenset(os.sched_getaffinity(0))}


def _threads(group: int) -> Iterator[int]:
    """Yield the threads of all processes of a group."""
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if os.getpgid(int(process.name)) == group:
                yield from (int(task.name) for task in (process / "task").iterdir())
