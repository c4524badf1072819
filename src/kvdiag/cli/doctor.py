"""`kvdiag doctor`: live checks of router, prefill and decode."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import click
import msgspec
from rich.text import Text

from kvdiag.diagnosis.render import Style
from kvdiag.diagnosis.render.json import document
from kvdiag.diagnosis.render.neutral import neutral
from kvdiag.diagnosis.render.screen import screen, text
from kvdiag.doctor import CHECKS, Result, observe, probe
from kvdiag.errors import ExitCode, InputError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvdiag.doctor.site import Service

_LOOK_S: Final = 10.0
_STYLES: Final = {"ok": "green", "problem": "bold red", "not evaluated": "yellow"}


class _Document(msgspec.Struct, kw_only=True):
    schema: str = "kvdiag.doctor/1"
    checks: list[Result]


_EXAMPLES = """\b
Examples:
  kvdiag doctor --prefill http://p:8100 --decode http://d:8200
  kvdiag doctor --router http://r:8000 --prefill http://p:8100 --decode http://d:8200"""


@click.command("doctor", epilog=_EXAMPLES)
@click.option("--router", metavar="URL", help="The router's base URL.")
@click.option("--prefill", metavar="URL", multiple=True, help="A prefill engine's base URL; may be repeated.")
@click.option("--decode", metavar="URL", multiple=True, help="A decode engine's base URL; may be repeated.")
@click.option("--probe/--no-probe", "probes", default=True, help="Send a two-turn conversation to prove reuse.")
@click.option("--model", help="Model to ask in the probe; by default the first that is served.")
@click.option("--api-key", envvar="KVDIAG_API_KEY", show_envvar=True, help="Sent as bearer token.")
@click.option(
    "--timeout",
    default=120.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Seconds that each request of the probe may take.",
)
@click.option(
    "--format", "output", type=click.Choice(["terminal", "json"]), default="terminal", show_default=True, help="Output."
)
def command(
    router: str | None,
    prefill: tuple[str, ...],
    decode: tuple[str, ...],
    probes: bool,  # noqa: FBT001 - click's
    model: str | None,
    api_key: str | None,
    timeout: float,
    output: Literal["terminal", "json"],
) -> int:
    """Check a running deployment, then prove that a second turn is read back.

    Every check says ok, problem (with a remedy), or not evaluated (with what it needs). The probe sends two short
    completions through the router, and drives every prefill with every decode by hand, up to 16 pairs, to name the link
    that is broken. Exits 0
    when reuse is proven and nothing is wrong, 1 on problems, 3 when too little could be evaluated, 4 when nothing
    answers.
    """
    if not (router or prefill or decode):
        raise InputError("nothing to check; give --router, --prefill or --decode")
    look = partial(observe, router, prefill, decode, api_key=api_key, timeout_s=min(timeout, _LOOK_S))
    site = look()
    useless = [f"{service.name}: {why}" for service in site.services if (why := _useless(service))]
    if len(useless) == len(site.services):
        raise UnavailableError("; ".join(useless))
    results = [check.run(site) for check in CHECKS if not check.last]
    if probes:
        results += probe(site, model=model, timeout_s=timeout)
        site = replace(look(), earlier=site)
    results += [check.run(site) for check in CHECKS if check.last]
    click.echo(_shown(results, output), nl=False)
    return _exit_code(results)


def _useless(service: Service) -> str | None:
    if service.foreign:
        return "neither an engine nor kvdiag's router: metrics of something else, and no model; check the URL"
    return service.problem


def _exit_code(results: Sequence[Result]) -> ExitCode:
    if any(result.state == "problem" for result in results):
        return ExitCode.FINDINGS
    proven = any(result.check == "reuse" and result.state == "ok" for result in results)
    return ExitCode.CLEAR if proven else ExitCode.INCONCLUSIVE


def _shown(results: list[Result], output: Literal["terminal", "json"]) -> str:
    if output == "json":
        return document(_Document(checks=results))
    return text(_lines(results), screen(Style()))


def _lines(results: Sequence[Result]) -> Iterator[Text]:
    width = max(len(result.check) for result in results)
    for result in results:
        line = Text(f"{result.state:13}", style=_STYLES[result.state])
        seen = " ".join(result.seen.split())  # answers of servers end their lines
        line.append(f"  {result.check:{width}}  {neutral(seen)}", style="default")
        yield line
        if result.remedy:
            yield Text(f"{'':13}  {'':{width}}  -> {neutral(result.remedy)}", style="bold")
