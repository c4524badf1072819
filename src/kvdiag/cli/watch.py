"""`kvdiag watch`: a live view over /metrics."""

from __future__ import annotations

import contextlib
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from kvdiag.diagnosis.render import Style, wording
from kvdiag.diagnosis.render.neutral import neutral
from kvdiag.diagnosis.render.screen import screen, table, text
from kvdiag.doctor import Site, observe
from kvdiag.doctor.frame import CauseRow, EngineRow, Frame, frame
from kvdiag.errors import ExitCode, InputError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import RenderableType

_CAUSES_SHOWN: Final = 12
_CAUSES: Final = ("Cause", "Turns now", "Since start")
_ENGINES: Final = ("Engine", "Running", "Waiting", "KV used", "Retained", "Reads", "External", "Failed")
_LEFT_OUT_WHEN_NARROW: Final = frozenset({"Reads", "External"})
_WIDE: Final = 110
"""Columns from which on nothing is left out."""


_EXAMPLES = """\b
Examples:
  kvdiag watch --router http://r:8000 --prefill http://p:8100 --decode http://d:8200"""


@click.command("watch", epilog=_EXAMPLES)
@click.option("--router", metavar="URL", help="The router's base URL.")
@click.option("--prefill", metavar="URL", multiple=True, help="A prefill engine's base URL; may be repeated.")
@click.option("--decode", metavar="URL", multiple=True, help="A decode engine's base URL; may be repeated.")
@click.option("--interval", default=2.0, show_default=True, type=click.FloatRange(0.1), help="Seconds between scrapes.")
@click.option("--once", is_flag=True, help="Show one frame, over one interval, and end.")
def command(
    router: str | None,
    prefill: tuple[str, ...],
    decode: tuple[str, ...],
    interval: float,
    once: bool,  # noqa: FBT001 - click's
) -> int:
    """Watch turns, causes, transfers and retained memory of a running deployment.

    Redrawn in place on a terminal; piped, one line a frame. Ctrl-C ends it. Exits 4 when nothing answers at first, or nothing that is vLLM or kvdiag's.
    """
    if not (router or prefill or decode):
        raise InputError("nothing to watch; give --router, --prefill or --decode")
    look = partial(observe, router, prefill, decode, api_key=None, timeout_s=max(interval, 2.0))
    first = look()
    if all(service.problem for service in first.services):
        raise UnavailableError("; ".join(f"{service.name}: {service.problem}" for service in first.services))
    if not any(service.tells for service in first.services):
        names = "; ".join(service.name for service in first.services)
        raise UnavailableError(f"{names}: no metrics of vLLM or kvdiag at /metrics there; check the URLs")
    frames = _frames(first, look, interval)
    if once:
        console = screen(Style())
        click.echo(text(_parts(next(frames), console.width), console), nl=False)
    else:
        with contextlib.suppress(KeyboardInterrupt):  # the way to end it
            (_redraw if sys.stdout.isatty() else _print)(frames)
    return ExitCode.CLEAR


def line(shown: Frame) -> str:
    """Return a frame as one line of `name=value`."""
    rising = ",".join(wording.cause_name(row.cause, row.detail) for row in shown.causes if row.turns)
    values = {
        "turns_per_s": _number(shown.turns_per_s),
        "reused": _share(shown.reused),
        "ttft_p50": wording.seconds(shown.ttft_p50_s),
        "ttft_p95": wording.seconds(shown.ttft_p95_s),
        "lost_tokens_per_s": _number(shown.lost_tokens_per_s),
        "read_per_s": wording.size(_sum(row.read_bytes_per_s for row in shown.engines)),
        "retained": wording.size(_sum(row.retained_bytes for row in shown.engines)),
        "down": ",".join(_down(shown)) or "-",
        "causes": rising or "-",
    }
    return " ".join(f"{name}={value.replace(' ', '')}" for name, value in values.items())


def _frames(site: Site, look: Callable[[], Site], interval: float) -> Iterator[Frame]:
    at = time.monotonic()
    while True:
        time.sleep(interval)
        following, now = look(), time.monotonic()
        yield frame(site, following, now - at)
        site, at = following, now


def _redraw(frames: Iterator[Frame]) -> None:
    console = Console(markup=False, highlight=False, emoji=False)
    with Live(Text("first interval ..."), console=console, auto_refresh=False, screen=True) as live:
        for shown in frames:
            live.update(Group(*_parts(shown, console.width)), refresh=True)


def _print(frames: Iterator[Frame]) -> None:
    for shown in frames:
        click.echo(line(shown))
        sys.stdout.flush()


def _parts(shown: Frame, width: int) -> Iterator[RenderableType]:
    if shown.router:
        yield Text(_router_line(shown), style="bold")
    if down := _down(shown):
        yield Text(f"down: {', '.join(down)}", style="bold red")
    if shown.causes:
        yield table(_CAUSES, map(_cause_cells, shown.causes[:_CAUSES_SHOWN]), _CAUSES[1:])
    if shown.engines:
        kept = [place for place, name in enumerate(_ENGINES) if width >= _WIDE or name not in _LEFT_OUT_WHEN_NARROW]
        rows = ([_engine_cells(row)[place] for place in kept] for row in shown.engines)
        yield table([_ENGINES[place] for place in kept], rows, _ENGINES[1:])


def _router_line(shown: Frame) -> str:
    return (
        f"{_number(shown.turns_per_s)} turns/s, {_share(shown.reused)} of later turns reused, "
        f"TTFT p50 {wording.seconds(shown.ttft_p50_s)}, p95 {wording.seconds(shown.ttft_p95_s)}, "
        f"{_number(shown.lost_tokens_per_s)} tokens/s lost, {_number(shown.handles)} handles"
    )


def _cause_cells(row: CauseRow) -> tuple[str, str, str]:
    return wording.cause_name(row.cause, row.detail), _number(row.turns), _number(row.total)


def _engine_cells(row: EngineRow) -> tuple[str, ...]:
    retained = _number(row.retained_blocks) if row.retained_bytes is None else wording.size(row.retained_bytes)
    reads = wording.UNKNOWN if row.read_bytes_per_s is None else f"{wording.size(row.read_bytes_per_s)}/s"
    external = wording.UNKNOWN if row.external_tokens_per_s is None else f"{row.external_tokens_per_s:,.0f} tokens/s"
    load = _number(row.running), _number(row.waiting), _share(row.kv_usage)
    return neutral(row.name.replace("http://", "")), *load, retained, reads, external, _number(row.failed_transfers)


def _down(shown: Frame) -> list[str]:
    names = [shown.router] if shown.router and not shown.router_up else []
    return [neutral(name) for name in (*names, *(row.name for row in shown.engines if not row.up))]


def _number(value: float | None) -> str:
    return wording.UNKNOWN if value is None else f"{value:,.4g}"


def _share(value: float | None) -> str:
    return wording.UNKNOWN if value is None else f"{value:.0%}"


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
