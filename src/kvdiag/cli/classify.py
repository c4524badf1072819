"""`kvdiag classify`: logs in, causes out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kvdiag.cli.reading import classified
from kvdiag.diagnosis.follow import follow as follow_files
from kvdiag.diagnosis.options import LogRole, Options
from kvdiag.diagnosis.render import FORMATS, Format, render
from kvdiag.errors import ExitCode, InputError

if TYPE_CHECKING:
    from kvdiag.diagnosis.report import Report

_ROLES: Final[tuple[LogRole, ...]] = ("prefill", "decode", "router")
_CODES = {
    "healthy": ExitCode.CLEAR,
    "below_threshold": ExitCode.CLEAR,
    "local_hit": ExitCode.CLEAR,
    "inconclusive": ExitCode.INCONCLUSIVE,
}


class _Duration(click.ParamType[float]):
    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return `800ms`, `1.5s` or a bare number of seconds as seconds."""
        if isinstance(value, float):
            return value
        text = str(value).strip().lower()
        scale = 0.001 if text.endswith("ms") else 1.0
        try:
            seconds = float(text.removesuffix("ms").removesuffix("s")) * scale
        except ValueError:
            self.fail(f"{value!r} is not a duration; write 800ms or 1.5s", param, ctx)
        if not 0 < seconds < 1e6:
            self.fail(f"{value!r} must be longer than nothing", param, ctx)
        return seconds


class _Role(click.ParamType[tuple[LogRole, str]]):
    name = "role=glob"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[LogRole, str]:
        """Return `prefill=logs/p*` as role and glob."""
        name, _, glob = str(value).partition("=")
        role = next((role for role in _ROLES if role == name), None)
        if role is None or not glob:
            self.fail(f"{value!r}: write one of {', '.join(_ROLES)}, then =GLOB", param, ctx)
        return role, glob


_EXAMPLES = """\b
Examples:
  kvdiag classify logs/
  kvdiag classify logs/ --format html -o report.html"""


@click.command(epilog=_EXAMPLES)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--format", "format_", type=click.Choice(FORMATS), default="terminal", show_default=True, help="Output.")
@click.option("--turns", is_flag=True, help="Add a line for every turn, the last 20,000 at most.")
@click.option(
    "--slow", type=_Duration(), help="A turn is slow from this time to first token on; default: the log's own baseline."
)
@click.option(
    "--role",
    "roles",
    type=_Role(),
    multiple=True,
    help="Who wrote the files that match: prefill=, decode= or router=GLOB.",
)
@click.option("--jobs", type=click.IntRange(1), help="Processes that read; default: every core.")
@click.option("--follow", is_flag=True, help="Keep reading as the files grow; show the findings anew when they change.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write there instead of standard output."
)
def command(
    *,
    paths: tuple[str, ...],
    format_: Format,
    turns: bool,
    slow: float | None,
    roles: tuple[tuple[LogRole, str], ...],
    jobs: int | None,
    follow: bool,
    output: Path | None,
) -> int:
    """Say which turns were slow or not reused, and why, from logs.

    PATH is a log file, a directory of logs, or - for standard input: prefill, decode and router logs of stock vLLM,
    kvdiag's turn and event logs, /metrics snapshots; compressed, rotated, wrapped by containers.

    Exits with 0 when nothing is wrong, 1 with findings, 2 when no input can be used, 3 when too little was recognised.
    """
    options = Options(slow_s=slow, roles=roles, turns=turns or format_ == "html", jobs=jobs)  # charts draw the turns
    if follow:
        codes = [_show(report, format_, output, turns=turns) for report in follow_files(paths, options)]
        return codes[-1]
    return _show(classified(paths, options), format_, output, turns=turns)


def _show(report: Report, format_: Format, output: Path | None, *, turns: bool) -> int:
    nothing_read = all(item.problem for item in report.inputs)  # then this comes before what was not judged
    for item in report.inputs:
        if item.kind == "unreadable" or item.cut_short or nothing_read:
            click.echo(f"kvdiag: {item.path}: {item.problem}", err=True)
    text = render(report, format_, turns=turns, color=False if output else None)
    if output is None:
        click.echo(text, nl=False)
    else:
        _write(output, text)
    return ExitCode.INTERRUPTED if report.interrupted else _CODES.get(report.verdict.cause, ExitCode.FINDINGS)


def _write(output: Path, text: str) -> None:
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{output}: cannot be written ({error.strerror}); choose another place with -o") from error
