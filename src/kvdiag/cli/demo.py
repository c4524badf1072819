"""`kvdiag demo`: a real prefill/decode pair on CPU, real faults, and the diagnosis of its own logs."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kvdiag.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvdiag.diagnosis.report import Report
    from kvdiag.localstack import LocalStack

DECODE_TTL_S: Final = 20
ROUTER_TTL_S: Final = 60
"""Longer than decode's on purpose: the router then sends a handle whose blocks are gone."""

_STEP: Final = "open the file, read the function, edit the line, run the test and report the result; "


_EXAMPLES = """\b
Examples:
  kvdiag demo
  kvdiag demo --out kvdiag-live --keep-running"""


@click.command(name="demo", epilog=_EXAMPLES)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("kvdiag-demo"),
    show_default=True,
    help="Folder for the logs of this run; must be new or empty.",
)
@click.option("--keep-running", is_flag=True, help="Leave the stack up after the report until Ctrl-C.")
def command(out: Path, *, keep_running: bool) -> None:
    """Run a real vLLM pair on CPU with the router and Prometheus, drive agents through it, classify its logs.

    Takes one to two minutes on two cores and about 5 GiB of memory. Needs the real stack: `make setup` in a clone installs it.
    """
    from kvdiag.localstack import EngineOptions, LocalStack, StackOptions  # noqa: PLC0415 - start-up time

    _require_empty(out)
    options = StackOptions(
        # As in production with a small prefill cache: what is reused has to come from decode.
        prefill=EngineOptions(prefix_caching=False, decode_ttl_s=DECODE_TTL_S),
        decode=EngineOptions(decode_ttl_s=DECODE_TTL_S),
        router_arguments=("--handle-ttl", str(ROUTER_TTL_S), "--no-derive"),
        prometheus=True,
    )
    with LocalStack(out, options, progress=_say) as stack:
        drive(stack)
        _report_scrapes(stack)
        report = _classify(stack.logs)
        for line in next_steps(report, out, _as_typed()):
            click.echo(line)
        if keep_running:
            _wait_for_interrupt(stack)


def drive(stack: LocalStack) -> None:
    """Drive four agents: one that works, one too short to read back, one that comes back too late, one without an id."""
    from kvdiag.localstack.agent import Agent  # noqa: PLC0415 - start-up time

    assert stack.router is not None  # noqa: S101 - the demo's options start one
    port = stack.router.port
    _say("four turns of an agent whose history is read back from decode")
    steady = Agent(port, "steady", stream=True)
    for turn in range(4):
        steady.say(f"step {turn}: {_STEP * (8 if turn else 24)}")
    _say("two turns that are too short to be worth a read (not streamed)")
    short = Agent(port, "short", parameters={"max_tokens": 1})
    short.say("hello")
    short.say("go on")
    _say("two turns of an agent that sends no conversation id")
    anonymous = Agent(port, stream=True)
    anonymous.say(_STEP * 20)
    anonymous.say("go on: " + _STEP)
    _say(f"an agent that comes back after decode's {DECODE_TTL_S} s are over")
    late = Agent(port, "late", stream=True)
    late.say(_STEP * 20)
    time.sleep(DECODE_TTL_S + 4)
    late.say("go on: " + _STEP)


def _require_empty(out: Path) -> None:
    if out.exists() and any(out.iterdir()):
        raise click.UsageError(f"{out} is not empty; remove it or choose another folder with --out")


def _report_scrapes(stack: LocalStack) -> None:
    """Say which targets Prometheus scrapes; a target that is down is an error."""
    import json  # noqa: PLC0415 - start-up time

    from kvdiag.localstack.process import get  # noqa: PLC0415

    assert stack.prometheus is not None  # noqa: S101 - the demo's options start one
    _, body = get(stack.prometheus.port, "/api/v1/query?query=up")
    states = {row["metric"]["job"]: row["value"][1] == "1" for row in json.loads(body)["data"]["result"]}
    down = [job for job in ("prefill", "decode", "router") if not states.get(job)]
    if down:
        raise UnavailableError(f"Prometheus cannot scrape {', '.join(down)}; read {stack.prometheus.log}")
    _say(f"Prometheus scrapes {', '.join(sorted(states))} at {stack.prometheus.url}")


def _classify(logs: list[Path]) -> Report:
    from kvdiag.cli.reading import with_turns  # noqa: PLC0415 - start-up time
    from kvdiag.diagnosis.render import render  # noqa: PLC0415 - likewise

    paths = [str(path) for path in logs]
    _say("kvdiag classify --turns " + " ".join(paths))
    report = with_turns(paths)
    click.echo(render(report, "terminal", turns=True), nl=False)
    return report


def next_steps(report: Report, folder: Path, kvdiag: str) -> Iterator[str]:
    """Yield what to do with the logs of this run, with its first finding and a turn of it as example."""
    yield f"\nThe logs are in {folder}. Next:"
    yield f"  {kvdiag} classify {folder} --format html -o report.html"
    finding = next(iter(report.findings), None)
    turns = report.per_turn or []
    shown = [
        turn for turn in turns if finding and (turn.cause, turn.detail) == (finding.cause, finding.detail)
    ] or turns
    if shown:
        yield f"  {kvdiag} explain {shown[0].request_id} {folder}"
    if finding:
        yield f"  {kvdiag} runbook {finding.runbook}"


def _as_typed() -> str:
    """Return what to type for `kvdiag` here: its path where the shell would not find it."""
    return "kvdiag" if shutil.which("kvdiag") else sys.argv[0]


def _wait_for_interrupt(stack: LocalStack) -> None:
    from kvdiag.localstack.stack import ENVIRONMENT  # noqa: PLC0415 - start-up time

    assert stack.router is not None  # noqa: S101 - the demo's options start one
    _say(f"`. {stack.folder / ENVIRONMENT}` sets the variables of the runbooks' commands, and of this one:")
    click.echo(f'  {_as_typed()} doctor --router "$ROUTER" --prefill "$PREFILL" --decode "$DECODE"', err=True)
    _say(
        f"doctor finds ttl_order: the router's {ROUTER_TTL_S} s over decode's {DECODE_TTL_S} s are one of the demo's faults"
    )
    _say(f"still running; router at {stack.router.url}; Ctrl-C ends it")
    try:
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        _say("stopping")


def _say(message: str) -> None:
    click.echo(f"kvdiag demo: {message}", err=True)
