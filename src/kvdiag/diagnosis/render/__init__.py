"""A report in, text out: one module per output, all with the signature `render(report, style) -> str`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

if TYPE_CHECKING:
    import msgspec

    from kvdiag.diagnosis.report import Report

Format = Literal["terminal", "json", "jsonl", "markdown", "html"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)


@dataclass(frozen=True, slots=True)
class Style:
    """How to show a report. None means as standard output is (a terminal or not, NO_COLOR, its width)."""

    turns: bool = False
    color: bool | None = None
    width: int | None = None


def render(
    report: Report, output: Format, *, turns: bool = False, color: bool | None = None, width: int | None = None
) -> str:
    """Return the report as text in one of `FORMATS`, ending in a line feed.

    `turns` adds the table of turns, `color` and `width` (columns) matter to the terminal only. Imports no more than
    the format needs.
    """
    return _text(output, report, Style(turns=turns, color=color, width=width))


def show(result: msgspec.Struct, noun: str, output: Literal["terminal", "json"]) -> str:
    """Return what another verb found: as JSON, or for the terminal by the module of this package named `noun`."""
    if output == "terminal":
        return _text(noun, result, Style())
    return str(importlib.import_module("kvdiag.diagnosis.render.json").document(result))


def _text(module: str, result: msgspec.Struct, style: Style) -> str:
    return str(importlib.import_module(f"kvdiag.diagnosis.render.{module}").render(result, style))
