"""`kvdiag runbook`: print what to do about a cause."""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.markdown import Markdown

from kvdiag import runbooks
from kvdiag.causes import CAUSES


@click.command("runbook")
@click.argument("cause", required=False)
def command(cause: str | None) -> None:
    """Print the runbook of CAUSE; without CAUSE, list them.

    CAUSE is a name from a report or an alert, such as expired_remote_read or missing_metadata/consumed. Symptoms without
    a known cause have `triage`.
    """
    if cause is None:
        _list()
        return
    text = runbooks.page(cause).text
    if sys.stdout.isatty():
        Console().print(Markdown(text))
    else:
        click.echo(text, nl=False)


def _list() -> None:
    width = max(map(len, runbooks.names()))
    click.echo(f"{runbooks.TRIAGE:{width}}  start here when no cause is named")
    for cause in CAUSES.values():
        click.echo(f"{cause.name:{width}}  {cause.meaning}")
