"""`kvdiag dashboards`: write dashboards, rules and provisioning files, or push the dashboards to Grafana."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvdiag import runbooks
from kvdiag.dashboards import files
from kvdiag.dashboards.grafana import Grafana
from kvdiag.dashboards.settings import Settings
from kvdiag.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

_DEFAULTS = Settings()


def _options(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--ttft-objective",
            type=float,
            default=_DEFAULTS.ttft_objective,
            show_default=True,
            metavar="SECONDS",
            help="Time to first token that later turns should keep; a bucket bound.",
        ),
        click.option(
            "--ttft-target",
            type=float,
            default=_DEFAULTS.ttft_target,
            show_default=True,
            metavar="SHARE",
            help="Share of later turns that must keep it.",
        ),
    ):
        function = option(function)
    return function


def pages() -> dict[str, str]:
    """Return every runbook's text by its name."""
    return {name: runbooks.page(name).text for name in runbooks.names()}


_EXAMPLES = """\b
Examples:
  kvdiag dashboards write ./dashboards
  kvdiag dashboards push http://grafana:3000"""


@click.group("dashboards", epilog=_EXAMPLES)
def command() -> None:
    """Grafana dashboards, Prometheus rules and provisioning files."""


@command.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--grafana-url",
    default=_DEFAULTS.grafana_url,
    show_default=True,
    metavar="URL",
    help="Where the links in alerts lead.",
)
@_options
def write(directory: Path, **chosen: Any) -> None:  # noqa: ANN401 - click passes options by name
    """Write everything to DIRECTORY.

    boards/ and runbooks/ hold Grafana's JSON, provisioning/ what Grafana reads at its start, kvdiag.rules.yaml the
    recording and alerting rules.
    """
    written = files.texts(Settings(**chosen), pages())
    for name, text in written.items():
        _save(directory / name, text)
    click.echo(f"{len(written)} files in {directory}. Next:")
    click.echo(f"  promtool check rules {directory}/kvdiag.rules.yaml   # then list it under rule_files in Prometheus")
    click.echo("  kvdiag dashboards push URL                # or set KVDIAG_DASHBOARDS and use provisioning/")


@command.command()
@click.argument("url")
@click.option(
    "--token",
    envvar="GRAFANA_TOKEN",
    show_envvar=True,
    required=True,
    help="Service account token with the role Editor.",
)
@_options
def push(url: str, token: str, **chosen: Any) -> None:  # noqa: ANN401 - click passes options by name
    """Create or replace the dashboards in the Grafana at URL (https://HOST or http://HOST:3000)."""
    settings = Settings(**chosen, grafana_url=url)
    documents = files.documents(settings, pages())
    Grafana(settings.grafana_url, token).push(documents)
    click.echo(f"{len(documents)} dashboards pushed; start at {settings.grafana_url}/d/kvdiag-overview")


def _save(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); choose another directory") from None
