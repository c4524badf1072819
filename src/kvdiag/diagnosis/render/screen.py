"""Rich output as text: coloured on a terminal, plain when piped, nothing interpreted as markup."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from kvdiag.diagnosis.render import Style

_PIPED_WIDTH: Final = 4096
"""Piped output is for grep: one row, one line."""


def screen(style: Style) -> Console:
    """Return a console that writes nowhere; where `style` leaves colour or width open, standard output decides."""
    output = Console()
    color = output.is_terminal and not output.no_color if style.color is None else style.color
    return Console(
        file=io.StringIO(),
        width=style.width or (output.width if output.is_terminal else _PIPED_WIDTH),
        force_terminal=color,
        color_system="standard" if color else None,
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )


def text(parts: Iterable[RenderableType], console: Console) -> str:
    """Return the parts, one under the other, ending in a line feed and without trailing blanks."""
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[str] = ()) -> Table:
    """Return a table; columns named in `numeric` are set right and never wrapped. Cells are text, not markup."""
    right = frozenset(numeric)
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading in headings:
        drawn.add_column(
            heading, justify="right" if heading in right else "left", overflow="fold", no_wrap=heading in right
        )
    for row in rows:
        drawn.add_row(*map(Text, row))
    return drawn


def aligned(headings: Sequence[str], rows: Sequence[Sequence[str]], numeric: Iterable[str] = ()) -> str:
    """Return a table as plain lines, never wrapped: for long tables, which rich would take minutes to lay out."""
    right = frozenset(numeric)
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    fits = [str.rjust if heading in right else str.ljust for heading in headings]
    lines = (
        "  ".join(fit(cell, width) for fit, cell, width in zip(fits, row, widths, strict=True)).rstrip()
        for row in (headings, *rows)
    )
    return "\n".join(lines) + "\n"
