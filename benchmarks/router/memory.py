"""Watch the router's memory over many turns of many live conversations.

python -m benchmarks.router.memory --conversations 20000 --turns 100000
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.router.compare import HERE, Bench, get

ROUND_S = 5.0


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=100_000)
    args = parser.parse_args()
    options = argparse.Namespace(redis=None, vllm_router=None, nginx=None)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        try:
            bench.start()
            get(bench.decode, "/_set?chunks=5&delay_ms=0")
            port, pid = bench.targets["kvdiag"]
            done = 0
            while done < args.turns:
                load = [sys.executable, str(HERE / "load.py"), "--port", str(port), "--conc", "64", "--warmup", "0"]
                load += ["--duration", str(ROUND_S), "--conversations", str(args.conversations)]
                load += ["--conv-base", str(done % args.conversations)]
                result = json.loads(subprocess.run(load, check=True, capture_output=True).stdout)
                done += result["n"]
                handles = get(port, "/metrics").decode().split("\nkvdiag_router_handles ")[1].split("\n")[0]
                print(
                    f"{done} turns, {float(handles):.0f} handles, {resident_mib(pid):.1f} MiB, errors {result['errors']}"
                )
        finally:
            bench.stop()


if __name__ == "__main__":
    main()
