"""`python -m benchmarks.faults`: run the matrix, judge it, keep its logs as cases, write docs/faults.md."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from benchmarks.faults import network
from benchmarks.faults.cases import keep
from benchmarks.faults.fleet import Fleet
from benchmarks.faults.matrix import SCENARIOS
from benchmarks.faults.report import page
from benchmarks.faults.rows import row_of
from benchmarks.faults.run import FACTS, run

from kvdiag.errors import KvdiagError

if TYPE_CHECKING:
    from benchmarks.faults.scenario import Scenario

ROOT = Path(__file__).parents[2]


@click.group(invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """Provoke every fault on the real pair and judge what can be seen of it. Without a command: run, then judge."""
    if context.invoked_subcommand is None:
        context.invoke(run_command)
        context.invoke(judge_command)


_out = click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("faults"), help="Folder for logs and facts."
)
_only = click.argument("names", nargs=-1)


@main.command("run")
@_out
@_only
def run_command(out: Path = Path("faults"), names: tuple[str, ...] = ()) -> None:
    """Run scenarios, all by default; about an hour."""
    isolated = network.enter()
    if isolated:
        network.prepare()
    chosen = _chosen(names)
    # A time limit ends the run with this signal: engines must not outlive it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with Fleet(out.resolve() / "engines", _say) as fleet:
        for scenario in chosen:
            if scenario.network and not isolated:
                _say(f"{scenario.name}: not run, it needs a network namespace")
                continue
            try:
                _run_one(scenario, fleet, out.resolve())
                if scenario.spoils:
                    fleet.stop(*scenario.engines)
            except (KvdiagError, OSError, RuntimeError) as error:
                _say(f"{scenario.name}: broke off: {error!r}")
                fleet.stop(*scenario.engines)


def _run_one(scenario: Scenario, fleet: Fleet, out: Path) -> None:
    prefill, decode = fleet.engines(*scenario.engines)
    began = time.monotonic()
    facts = run(scenario, prefill, decode, out / "runs" / scenario.name)
    _say(
        f"{scenario.name}: {facts.requests} requests, {facts.errors} errors, {facts.different} of {facts.compared} "
        f"answers differ, {time.monotonic() - began:.0f} s"
    )


@main.command("judge")
@_out
@click.option("--cases", type=click.Path(path_type=Path, file_okay=False), help="Keep the logs as cases there.")
@click.option("--page", "page_file", type=click.Path(path_type=Path), help="Write the table there.")
@_only
def judge_command(
    out: Path = Path("faults"), cases: Path | None = None, page_file: Path | None = None, names: tuple[str, ...] = ()
) -> None:
    """Judge what was run. Exits 1 when something is not as expected or was not run."""
    rows, not_run = [], []
    for scenario in _chosen(names):
        folder = out.resolve() / "runs" / scenario.name
        if not (folder / FACTS).exists():
            not_run.append(scenario.name)
            continue
        rows.append(row := row_of(scenario, folder))
        _say(f"{scenario.name}: " + ("; ".join(row.missed) or "as expected"))
        if cases is not None:
            keep(scenario, folder, cases)
    if not_run:
        _say(f"not run: {', '.join(not_run)}")
    if page_file is not None:
        page_file.write_text(page(rows, not_run))
    if not_run or any(row.missed for row in rows):
        raise SystemExit(1)


def _chosen(names: tuple[str, ...]) -> list[Scenario]:
    unknown = set(names) - {scenario.name for scenario in SCENARIOS}
    if unknown:
        raise click.UsageError(f"no scenario is named {', '.join(sorted(unknown))}")
    return [scenario for scenario in SCENARIOS if not names or scenario.name in names]


def _say(message: str) -> None:
    click.echo(f"faults: {message}", err=True)


if __name__ == "__main__":
    main()
