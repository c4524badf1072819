"""What every benchmark says of itself: the machine, the versions, medians with their spread, ratios from pairs alone.

A pair is two runs close together, one of each rival, so that what else the machine does hits both.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ENOUGH_PAIRS: Final = 5


def machine() -> str:
    """Return processor, cores, memory, kernel and Python in one line, and how busy it is now."""
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?: ?")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{model.split(': ')[1]}, {os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, load average {os.getloadavg()[0]:.2f}"
    )


def versions(*distributions: str) -> str:
    """Return the installed version of each distribution, in one line."""
    return ", ".join(f"{name} {_version(name)}" for name in distributions)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def spread(values: Iterable[float]) -> str:
    """Return the median with the smallest and the largest value."""
    known = list(values)
    return f"{statistics.median(known):.3g} [{min(known):.3g}..{max(known):.3g}]"


def quotients(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return one quotient a pair; a pair in which either side has nothing is none."""
    return [a / b for a, b in zip(ours, theirs, strict=True) if a > 0 and b > 0]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the median of paired quotients with its spread, or why there is none."""
    pairs = quotients(ours, theirs)
    return spread(pairs) if len(pairs) >= ENOUGH_PAIRS else f"no ratio: {len(pairs)} of {ENOUGH_PAIRS} pairs"


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Return the median of paired quotients, None from too few pairs."""
    pairs = quotients(ours, theirs)
    return statistics.median(pairs) if len(pairs) >= ENOUGH_PAIRS else None


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process tree so far, from the scheduler: finer than clock ticks."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
        for child in (task / "children").read_text().split():
            total += int(cpu_seconds(int(child)) * 1e9)
    return total / 1e9
