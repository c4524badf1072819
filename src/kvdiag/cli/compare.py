"""`kvdiag compare`: before against after, with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import click

from kvdiag.cli.reading import with_turns
from kvdiag.diagnosis.comparison import arms, compare
from kvdiag.diagnosis.render import show
from kvdiag.errors import ExitCode

if TYPE_CHECKING:
    from kvdiag.diagnosis.comparison import Comparison


_TWO_ARMS: Final = (
    "set the router's holdout (such as --holdout 0.05) and compare later, or compare two logs: kvdiag compare A B"
)


_EXAMPLES = """\b
Examples:
  kvdiag compare before/ after/"""


@click.command("compare", epilog=_EXAMPLES)
@click.argument("a")
@click.argument("b", required=False)
@click.option("--seed", default=0, show_default=True, help="Seed of the resampling; equal seeds give equal intervals.")
@click.option(
    "--format", "output", type=click.Choice(["terminal", "json"]), default="terminal", show_default=True, help="Output."
)
def command(a: str, b: str | None, seed: int, output: Literal["terminal", "json"]) -> int:
    """Compare the turns in A with those in B: before and after, or off and on.

    A and B are each a log file or a directory of logs; without B, the conversations of A that the router held out from
    reuse (router --holdout) are compared with the others. TTFT by turn and by outcome, the share of later turns that
    reused, and the tokens lost; each change with its interval, or said to be within noise. Exits 1 when anything is
    worse in B, 3 when there are too few turns to judge anything.
    """
    before = with_turns([a])
    sides = arms(before) if b is None else (before, with_turns([b]))
    if b is None and not sides[0].per_turn:
        click.echo(f"kvdiag: no conversation in {a} was held out from reuse; {_TWO_ARMS}", err=True)
        if output == "terminal":
            return ExitCode.INCONCLUSIVE
    comparison = compare(*sides, seed=seed)
    click.echo(show(comparison, "comparison", output), nl=False)
    return _exit_code(comparison)


def _exit_code(comparison: Comparison) -> ExitCode:
    changes = {row.change for row in comparison.rows}
    if "worse" in changes:
        return ExitCode.FINDINGS
    return ExitCode.CLEAR if changes - {"too few"} else ExitCode.INCONCLUSIVE
