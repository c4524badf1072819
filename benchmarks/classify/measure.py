"""Time `kvdiag classify` against tools that only count the same needles: paired runs, ratios, peak memory.

usage: python -m benchmarks.classify.measure FILE... [--pairs 5] [--jobs N]

Each pair runs the rival and kvdiag one after the other on the same files (page cache warm), so that what else the
machine does hits both. Prints wall-clock and processor time, MB/s, and the median ratio with its range.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks import pairs

from kvdiag.diagnosis.patterns import PATTERNS

NEEDLES = sorted({pattern.needle for pattern in PATTERNS if pattern.find is None and not pattern.spellings})


class Run(NamedTuple):
    """One run of a command. Times are seconds."""

    wall: float
    cpu: float


def run(command: list[str]) -> Run:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    # Not /dev/null: grep stops at the first match when it sees that nobody reads.
    subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Run(wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def _alternatives() -> str:
    return "|".join(re.escape(needle).replace("\\ ", " ").replace("\\'", "'") for needle in NEEDLES)


def rivals(files: list[str], needles: str) -> dict[str, list[str]]:
    """Return the commands to compare with, as far as they are installed."""
    found = {
        "rg -c -F": ["rg", "-c", "-F", "-f", needles, *files],
        "rg -c": ["rg", "-c", _alternatives(), *files],
        "grep -cE": ["grep", "-cE", _alternatives(), *files],
    }
    return {name: command for name, command in found.items() if shutil.which(command[0])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--pairs", type=int, default=pairs.ENOUGH_PAIRS)
    parser.add_argument(
        "--against", nargs="+", default=["rg -c", "grep -cE"], choices=("rg -c -F", "rg -c", "grep -cE")
    )
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    print(f"machine: {pairs.machine()}\nversions: {pairs.versions('kvdiag', 'hyperscan', 'msgspec')}")
    size = sum(Path(name).stat().st_size for name in options.files) / 1e6
    ours = [sys.executable, "-m", "kvdiag", "classify", *options.files, "--format", "json", "--jobs", str(options.jobs)]
    run(ours)
    # Before the rivals, which map whole files, have run.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{size:.0f} MB, {options.jobs} processes, largest of them {peak:.0f} MiB")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as needles:
        needles.write("\n".join(NEEDLES) + "\n")
        needles.flush()
        for name, command in rivals(options.files, needles.name).items():
            if name in options.against:
                report(name, [(run(command), run(ours)) for _ in range(options.pairs)], size)


def report(name: str, runs: list[tuple[Run, Run]], size: float) -> None:
    for unit in ("wall", "cpu"):
        theirs = [getattr(rival, unit) for rival, _ in runs]
        ours = [getattr(mine, unit) for _, mine in runs]
        print(
            f"{name:9} {unit:4}: rival {pairs.spread(size / max(took, 1e-9) for took in theirs)} MB/s, "
            f"kvdiag {pairs.spread(size / took for took in ours)} MB/s, "
            f"ratio {pairs.ratio(ours, theirs)}, {len(runs)} pairs"
        )


if __name__ == "__main__":
    main()
