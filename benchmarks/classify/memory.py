"""Classify much, and hold the memory of all its processes to a bound.

usage: memory.py PATH... [--bound-mib 300] [--jobs N]

Samples /proc ten times a second: the resident memory of the command and its readers, added up (pages that they share
count for each), and their proportional share (which counts such pages once). Exits 1 where the sum exceeds the bound.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

_KIB: Final = re.compile(rb"^(Rss|Pss):\s+(\d+) kB", re.MULTILINE)


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return [pid]
    return [pid, *(member for child in text.split() for member in family(int(child)))]


def resident(pids: list[int]) -> dict[str, float]:
    """Return their resident memory and proportional share, added up, MiB."""
    sums = {"Rss": 0.0, "Pss": 0.0}
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
        except OSError:
            continue
        for name, kib in _KIB.findall(rollup):
            sums[name.decode()] += int(kib) / 1024
    return sums


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--bound-mib", type=float, default=300)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    size = sum(
        file.stat().st_size for path in map(Path, options.paths) for file in [path, *path.rglob("*")] if file.is_file()
    )
    command = [
        sys.executable,
        "-m",
        "kvdiag",
        "classify",
        *options.paths,
        "--format",
        "json",
        "--jobs",
        str(options.jobs),
    ]
    start, most = time.perf_counter(), {"Rss": 0.0, "Pss": 0.0}
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        while running.poll() is None:
            now = resident(family(running.pid))
            most = {name: max(most[name], now[name]) for name in most}
            time.sleep(0.1)
    wall = time.perf_counter() - start
    print(
        f"{size / 2**30:.2f} GiB in {wall:.0f} s, {size / wall / 1e6:.0f} MB/s; at most {most['Rss']:.0f} MiB resident in all "
        f"processes together, {most['Pss']:.0f} MiB with shared pages counted once; exit {running.returncode}"
    )
    return int(most["Rss"] > options.bound_mib)


if __name__ == "__main__":
    sys.exit(main())
