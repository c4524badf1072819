"""`kvdiag tune` for a terminal: the speeds, a plot of each TTL, the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from kvdiag.diagnosis.render import wording
from kvdiag.diagnosis.render.screen import screen, table, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from kvdiag.diagnosis.render import Style
    from kvdiag.diagnosis.tuning import CostRow, Line, TtlRow, Tuning

_BAR: Final = 30
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def render(tuning: Tuning, style: Style) -> str:
    """Return the tuning as text."""
    return text(_parts(tuning), screen(style))


def _parts(tuning: Tuning) -> Iterator[RenderableType]:
    size = "" if tuning.bytes_per_token is None else f"; KV takes {wording.size(tuning.bytes_per_token)} a token"
    yield Text(
        f"{wording.count(tuning.turns)} turns, {wording.count(tuning.gaps)} gaps between turns{size}", style="bold"
    )
    yield Text(f"prefill computes: {_speed(tuning.prefill)}")
    yield Text(f"prefill reads back: {_speed(tuning.read)}")
    if tuning.rows:
        most = max((row.held_tokens or 0 for row in tuning.rows), default=0)
        rows = [_cells(row, most) for row in tuning.rows]
        yield table(("TTL", "Would be reused", "Held on decode, on average"), rows, ("TTL",))
    if tuning.costs:
        longest = max(max(row.compute_s, row.read_s) for row in tuning.costs) or 1.0
        costs = [_cost_cells(row, longest) for row in tuning.costs]
        yield table(("Tokens", "Computed", "Read back", "Faster"), costs, ("Tokens",))
    yield Text("Settings", style="bold")
    settings = [
        (item.setting, f"{item.value:,} {item.unit}" if item.value else "-", item.why) for item in tuning.advice
    ]
    yield table(("Setting", "Value", "Why"), settings, ("Value",))


def _speed(line: Line | None) -> str:
    if line is None:
        return "too few turns to tell"
    fixed = wording.seconds(max(line.fixed_s, 0.0))
    return f"{fixed} + {line.per_token_s * 1e6:.3g} us a token ({wording.count(line.points)} turns)"


def _cells(row: TtlRow, most: float) -> tuple[str, str, str]:
    held = wording.size(row.held_bytes) if row.held_bytes is not None else _tokens(row.held_tokens)
    share = (row.held_tokens or 0) / most if most else 0
    return wording.seconds(row.ttl_s), f"{_bar(row.reusable)} {row.reusable:4.0%}", f"{_bar(share)} {held}"


def _cost_cells(row: CostRow, longest: float) -> tuple[str, str, str, str]:
    compute, read = (f"{_bar(taken / longest)} {wording.seconds(taken)}" for taken in (row.compute_s, row.read_s))
    return wording.count(row.tokens), compute, read, "read" if row.read_s < row.compute_s else "compute"


def _tokens(tokens: float | None) -> str:
    return wording.UNKNOWN if tokens is None else f"{tokens:,.0f} tokens"


def _bar(share: float) -> str:
    eighths = round(share * _BAR * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()).ljust(_BAR)
