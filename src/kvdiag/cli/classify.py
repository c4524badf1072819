"""`kvdiag classify`: logs in, causes out."""

from __future__ import annotations

import click
import msgspec

from kvdiag.diagnosis import Options, classify
from kvdiag.errors import ExitCode


@click.command()
@click.argument("paths", nargs=-1, required=True)
@click.option("--format", "format_", type=click.Choice(["terminal", "json"]), default="terminal")
def command(paths: tuple[str, ...], format_: str) -> int:
    """Say which turns were slow or not reused, and why, from logs."""
    report = classify(paths, Options())
    click.echo(msgspec.json.encode(report) if format_ == "json" else report.verdict.summary)
    return {"healthy": ExitCode.CLEAR, "below_threshold": ExitCode.CLEAR, "inconclusive": ExitCode.INCONCLUSIVE}.get(
        report.verdict.cause, ExitCode.FINDINGS
    )
