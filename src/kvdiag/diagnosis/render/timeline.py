"""`kvdiag explain` for a terminal: each turn with where its time went and what was said about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.padding import Padding
from rich.text import Text

from kvdiag.causes import OUTCOMES
from kvdiag.diagnosis.render import wording
from kvdiag.diagnosis.render.neutral import neutral
from kvdiag.diagnosis.render.screen import screen, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from kvdiag.diagnosis.render import Style
    from kvdiag.diagnosis.report import LatencySplit, TurnReport
    from kvdiag.diagnosis.timeline import Moment, Passage, Timeline

_BAR: Final = 50


def render(timeline: Timeline, style: Style) -> str:
    """Return the time line as text."""
    return text(_lines(timeline), screen(style))


def _lines(timeline: Timeline) -> Iterator[RenderableType]:
    for passage in timeline.passages:
        yield _title(passage.turn)
        yield from (Padding(Text(line), (0, 0, 0, 2)) for line in _figures(passage.turn))
        yield from map(_moment, _numbered(passage))
        yield Text()
    if timeline.needs:
        yield Text("Parts of the time that are not known of every turn:", style="bold")
        yield from (Padding(Text(line), (0, 0, 0, 2)) for line in wording.needed(timeline.needs))


def _title(turn: TurnReport) -> Text:
    number = f"turn {turn.turn}" if turn.turn is not None else "request"
    line = Text(f"{number}  {neutral(turn.request_id)}  ", style="bold")
    cause = wording.cause_name(turn.cause, turn.detail)
    line.append(f"{cause} ({turn.confidence})", style="green" if turn.cause in OUTCOMES else "bold red")
    line.append(f"  {wording.meaning(turn.cause, turn.detail)}", style="not bold")
    return line


def _figures(turn: TurnReport) -> Iterator[str]:
    seconds = {"TTFT": turn.ttft_s, "prefill": turn.prefill_s, "gap before": turn.gap_s, "lost": turn.lost_seconds}
    counts = {"prompt": turn.prompt_tokens, "read back": turn.remote_tokens, "lost": turn.lost_tokens}
    told = [f"{name} {wording.seconds(value)}" for name, value in seconds.items() if value is not None]
    told += [f"{name} {wording.count(value)} tokens" for name, value in counts.items() if value is not None]
    if turn.slow:
        told.append("slow")
    if told:
        yield ", ".join(told)
    if turn.split is not None and (bar := _bar(turn.split)):
        yield bar


def _bar(split: LatencySplit) -> str:
    parts = [(name, mark, getattr(split, field)) for field, name, mark in wording.PARTS if getattr(split, field)]
    total = sum(taken for _, _, taken in parts)
    if not total:
        return ""
    drawn = "".join(mark * max(1, round(_BAR * taken / total)) for _, mark, taken in parts)
    return f"[{drawn}] " + ", ".join(f"{mark} {name} {wording.seconds(taken)}" for name, mark, taken in parts)


def _numbered(passage: Passage) -> list[tuple[int, Moment]]:
    return list(enumerate(passage.moments, start=1))


def _moment(numbered: tuple[int, Moment]) -> Padding:
    number, moment = numbered
    line = Text(f"{number:2}. {(moment.who or wording.UNKNOWN) + ':':9} {neutral(moment.what)}")
    line.append(f"\n{'':13}{wording.place(moment.evidence)}  {neutral(moment.evidence.text)}", style="dim")
    return Padding(line, (0, 0, 0, 2))
