"""Tables: rich ones for reading, plain ones for long lists and grep."""

from __future__ import annotations

import pytest

from kvdiag.diagnosis.render import Style
from kvdiag.diagnosis.render.screen import aligned, screen, table, text


def test_aligned_columns_line_up_and_numbers_stand_right() -> None:
    assert aligned(("Name", "N"), [("a", "1"), ("longer", "1000")], ("N",)) == (
        "Name       N\na          1\nlonger  1000\n"
    )


def test_an_empty_table_is_its_headings() -> None:
    assert aligned(("A", "B"), []) == "A  B\n"


def test_rows_must_fit_their_headings() -> None:
    with pytest.raises(ValueError, match="zip"):
        aligned(("A", "B"), [("only one",)])


@pytest.mark.parametrize("width", [20, 60])
def test_a_rich_table_keeps_to_the_width(width: int) -> None:
    drawn = text([table(("Cause", "Turns"), [("a" * 50, "12")], ("Turns",))], screen(Style(color=False, width=width)))
    assert max(map(len, drawn.splitlines())) <= width
    assert drawn.count("a") >= 50


def test_cells_are_text_and_not_markup() -> None:
    drawn = text([table(("X",), [("[red]x[/red]",)])], screen(Style(color=False)))
    assert "[red]x[/red]" in drawn
