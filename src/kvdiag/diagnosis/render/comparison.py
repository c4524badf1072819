"""`kvdiag compare` for a terminal: one row a measure, the change with its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from kvdiag.diagnosis.render import wording
from kvdiag.diagnosis.render.screen import screen, table, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from kvdiag.diagnosis.comparison import Comparison, Row
    from kvdiag.diagnosis.render import Style

_HEADINGS: Final = ("Measure", "Turns A", "Turns B", "A", "B", "Change", "Interval", "Judgement")
_NOTE: Final = "Medians and shares; intervals by bootstrap over conversations, jointly at 95 %"


def render(comparison: Comparison, style: Style) -> str:
    """Return the comparison as text."""
    return text(_parts(comparison), screen(style))


def _parts(comparison: Comparison) -> Iterator[RenderableType]:
    if comparison.rows:
        yield table(_HEADINGS, map(_cells, comparison.rows), _HEADINGS[1:-1])
    yield Text(f"{_NOTE}, seed {comparison.seed}.", style="dim")


def _cells(row: Row) -> tuple[str, ...]:
    change = None if row.a is None or row.b is None else row.b - row.a
    interval = "-" if row.low is None or row.high is None else f"{_signed(row, row.low)} to {_signed(row, row.high)}"
    turns = wording.count(row.turns_a), wording.count(row.turns_b)
    return (row.measure, *turns, _shown(row, row.a), _shown(row, row.b), _signed(row, change), interval, row.change)


def _shown(row: Row, value: float | None) -> str:
    if value is None:
        return wording.UNKNOWN
    return f"{value:.1%}" if row.unit == "share" else wording.seconds(value)


def _signed(row: Row, value: float | None) -> str:
    if value is not None and row.unit == "share":
        return f"{value * 100:+.1f} points"
    sign = "+" if value is not None and value > 0 else ""
    return sign + _shown(row, value)
