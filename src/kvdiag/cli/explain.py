"""`kvdiag explain`: one request or conversation as a time line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from kvdiag.causes import OUTCOMES
from kvdiag.cli.reading import watched
from kvdiag.diagnosis import Options
from kvdiag.diagnosis.assemble import assemble
from kvdiag.diagnosis.casebook import Casebook, Wanted
from kvdiag.diagnosis.pipeline import read
from kvdiag.diagnosis.render import show
from kvdiag.diagnosis.timeline import explain
from kvdiag.errors import ExitCode

if TYPE_CHECKING:
    from kvdiag.diagnosis.timeline import Timeline


_EXAMPLES = """\b
Examples:
  kvdiag explain 8b5a7a33a1a8a2ea logs/"""


@click.command("explain", epilog=_EXAMPLES)
@click.argument("name", metavar="REQUEST_OR_CONVERSATION")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--format", "output", type=click.Choice(["terminal", "json"]), default="terminal", show_default=True, help="Output."
)
def command(name: str, paths: tuple[str, ...], output: Literal["terminal", "json"]) -> int:
    """Tell one request or conversation as a time line: router, prefill and decode in causal order.

    REQUEST_OR_CONVERSATION is a request id as any log spells it (X-Request-Id, chatcmpl-...), a conversation id, or
    the beginning of one. PATH is as for `classify`. Exits 1 when a turn shown has a fault.
    """
    book, options = Casebook(wanted=Wanted(name)), Options(turns=True)
    with watched() as progress:
        read(book, paths, options, progress)
    timeline = explain(name, book, assemble(book, options))
    click.echo(show(timeline, "timeline", output), nl=False)
    return _exit_code(timeline)


def _exit_code(timeline: Timeline) -> ExitCode:
    faults = any(passage.turn.cause not in OUTCOMES for passage in timeline.passages)
    return ExitCode.FINDINGS if faults else ExitCode.CLEAR
