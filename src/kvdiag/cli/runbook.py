"""`kvdiag runbook`: print what to do about a cause."""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.markdown import Markdown

from kvdiag import runbooks
from kvdiag.causes import CAUSES


def _completed(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    return [name for name in runbooks.names() if name.startswith(begun)]


_EXAMPLES = """\b
Examples:
  kvdiag runbook expired_remote_read
  kvdiag runbook missing_metadata/consumed"""


@click.command("runbook", epilog=_EXAMPLES)
@click.argument("cause", required=False, shell_complete=_completed)
def command(cause: str | None) -> None:
    """Print the runbook of CAUSE; without CAUSE, list them.

    CAUSE is a name from a report, such as expired_remote_read or missing_metadata/consumed, or an alert, such as
    KvdiagSuspectKv. Symptoms without a known cause have `triage`.
    """
    if cause is None:
        _list()
        return
    text = runbooks.page(_named_by_alert(cause) or cause).text
    if sys.stdout.isatty():
        Console().print(Markdown(text))
    else:
        click.echo(text, nl=False)


def _named_by_alert(name: str) -> str | None:
    """Return the page of an alert; `triage` where the page depends on which series fired."""
    from kvdiag.dashboards.alerts import alerts  # noqa: PLC0415 - start-up time
    from kvdiag.dashboards.settings import Settings  # noqa: PLC0415 - likewise

    page = next((alert.runbook for alert in alerts(Settings()) if alert.name.lower() == name.lower()), None)
    return page if page is None or page in runbooks.names() else runbooks.TRIAGE


def _list() -> None:
    width = max(map(len, runbooks.names()))
    click.echo(f"{runbooks.TRIAGE:{width}}  start here when no cause is named")
    for cause in CAUSES.values():
        click.echo(f"{cause.name:{width}}  {cause.meaning}")
