"""`kvdiag tune`: from observed gaps, sizes and speeds to settings."""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import click

from kvdiag.cli.reading import with_turns
from kvdiag.diagnosis.render import show
from kvdiag.diagnosis.tuning import tune
from kvdiag.errors import ExitCode

_UNITS: Final = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}


class Size(click.ParamType[float]):
    """A number of bytes with an optional unit: 8GiB, 500MB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401 - click's
        """Return the size in bytes."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", str(value).strip(), re.IGNORECASE)
        if match is None:
            self.fail(f"{value!r} is not a size; write it like 8GiB or 500MB", param, ctx)
        return float(match[1]) * _UNITS[(match[2] or "").lower()]


_EXAMPLES = """\b
Examples:
  kvdiag tune logs/
  kvdiag tune logs/ --memory 8GiB"""


@click.command("tune", epilog=_EXAMPLES)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--target",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.95,
    show_default=True,
    help="Share of later turns that should find their blocks.",
)
@click.option("--memory", type=Size(), help="KV memory that decode may hold for later turns on average, such as 8GiB.")
@click.option(
    "--format", "output", type=click.Choice(["terminal", "json"]), default="terminal", show_default=True, help="Output."
)
def command(paths: tuple[str, ...], target: float, memory: float | None, output: Literal["terminal", "json"]) -> int:
    """Recommend TTLs and the recompute threshold from the turns in PATH.

    PATH is as for `classify`. Shown for each decoder_kv_blocks_ttl: the share of later turns that would find
    their blocks, and the memory that decode would hold for them. Exits 3 when the data are too thin for any setting.
    """
    tuning = tune(with_turns(paths), target=target, memory=memory)
    click.echo(show(tuning, "tuning", output), nl=False)
    return ExitCode.CLEAR if any(item.value for item in tuning.advice) else ExitCode.INCONCLUSIVE
