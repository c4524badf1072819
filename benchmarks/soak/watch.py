"""What a process holds: resident memory from the kernel, live Python objects from the process itself."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from kvdiag.localstack.process import get

_ANSWER_S: Final = 60.0


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process and all its descendants."""
    status = Path(f"/proc/{pid}/statm").read_text()
    pages = int(status.split()[1])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20 + sum(map(resident_mib, map(int, children)))


def objects(pid: int, answer: Path) -> int:
    """Return the live objects of a process started by benchmarks.soak.counted."""
    answer.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR2)
    deadline = time.monotonic() + _ANSWER_S
    while not answer.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} did not count its objects within {_ANSWER_S:.0f} s")
        time.sleep(0.02)
    return int(answer.read_text())


def counted(port: int, name: str) -> float:
    """Return the sum of a metric over its labels; zero where it is not there."""
    page = get(port, "/metrics", timeout=30)[1].decode()
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    return sum(sample.value for sample in samples if sample.name == name)


@dataclass
class Course:
    """A quantity over the course of a run."""

    name: str
    allowance: float
    """How much the end may exceed the middle, as a share."""
    values: list[float] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """Return the largest of the last third over the largest of the middle third, less one.

        The first third fills what is meant to be filled: conversations, caches, pools.
        """
        third = max(1, len(self.values) // 3)
        return max(self.values[-third:]) / max(self.values[third:-third] or self.values[:1]) - 1

    @property
    def flat(self) -> bool:
        """Return whether it stayed within its allowance."""
        return self.growth <= self.allowance
