"""The charts of the HTML report, each from the turns alone; None where the turns do not tell enough."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final, TypeVar

from kvdiag.causes import CAUSES, OUTCOMES
from kvdiag.diagnosis import clock
from kvdiag.diagnosis.render import svg, wording

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvdiag.diagnosis.report import TurnReport

DEFAULT_TTL_S: Final = 480.0
"""vLLM's decoder_kv_blocks_ttl where nothing sets it."""
_UNDATED: Final = re.compile(r"(\d\d-\d\d) (\d\d:\d\d:\d\d)")
_MOST_MARKS: Final = 3000
_COLUMNS_PER_DECADE: Final = 4
_Point = TypeVar("_Point")
_COLORS: Final = {
    "first_turn": "#9aa0a6",
    "local_hit": "#56b4e9",
    "remote_hit": "#009e73",
    "below_threshold": "#0072b2",
    "missing_metadata": "#e69f00",
    "feature_off": "#b8860b",
    "prefix_diverged": "#cc79a7",
    "expired_remote_read": "#d55e00",
    "expired_handoff": "#a6761d",
    "suspect_kv": "#ff00aa",
    "peer_unreachable": "#a855c8",
    "transfer_failed": "#d73027",
    "slow_transfer": "#f0a202",
    "queueing": "#8c6bd6",
    "kv_pressure": "#1b9e9e",
    "compute_bound": "#80cdc1",
    "client": "#b3b3b3",
    "upstream_error": "#c2185b",
    "router_overhead": "#999933",
    "unexplained": "#8d6e63",
}

_PART_COLORS: Final = {
    "router": "#999933",
    "prefill_queue": "#8c6bd6",
    "read": "#f0a202",
    "prefill_compute": "#80cdc1",
    "prefill_unsplit": "#9aa0a6",
    "handoff": "#d55e00",
    "decode_first_token": "#56b4e9",
    "decode_unsplit": "#c8ccd0",
}
_SLOWEST: Final = 24
_SHOWN_OF_ID: Final = 8


def color(cause: str) -> str:
    """Return the colour of a cause, the same in every chart."""
    return _COLORS.get(cause, "#8d6e63")


def causes_in(turns: Sequence[TurnReport]) -> list[str]:
    """Return the causes that occur, in the order of the table of causes, strange ones last."""
    seen = {turn.cause for turn in turns}
    return [cause for cause in CAUSES if cause in seen] + sorted(seen - CAUSES.keys())


def ttft_by_turn(turns: Sequence[TurnReport]) -> svg.Frame | None:
    """Time to first token (prefill time where that is unknown) against the turn's number, one mark a turn."""
    points = [(turn.turn, taken, turn) for turn in turns if turn.turn and (taken := turn.ttft_s or turn.prefill_s)]
    if not points:
        return None
    x = svg.Scale(0.5, max(number for number, _, _ in points) + 0.5, _whole)
    y = svg.logarithmic([taken for _, taken, _ in points], wording.seconds)
    frame = svg.Frame("TTFT by turn and cause", x, y, x_title="turn of the conversation", y_title="TTFT")
    for number, taken, turn in _thinned(points):
        frame.mark(number, taken, _mark(turn), color(turn.cause), _tip(turn))
    return frame


def part_colors(turns: Sequence[TurnReport]) -> dict[str, str]:
    """Return the colours of the parts of the turns' time that occur, by their names."""
    seen = {field for turn in turns for field, _, _ in _parts(turn)}
    return {name: _PART_COLORS[field] for field, name, _ in wording.PARTS if field in seen}


def spent(turns: Sequence[TurnReport]) -> svg.Frame | None:
    """Where the slowest turns spent the time to their first token, a column a turn."""
    known = [(taken, turn) for turn in turns if turn.split and (taken := sum(value for _, _, value in _parts(turn)))]
    slowest = sorted(known, key=lambda item: -item[0])[:_SLOWEST]
    if not slowest:
        return None
    names = [turn.request_id[:_SHOWN_OF_ID] for _, turn in slowest]
    x = svg.Scale(0.5, len(slowest) + 0.5, lambda at: names[int(at) - 1] if at == int(at) else "")
    y = svg.linear([taken for taken, _ in slowest], wording.seconds)
    frame = svg.Frame(
        "Where the time went", x, y, x_title="slowest turns, slowest first", y_title="time to first token"
    )
    for at, (_, turn) in enumerate(slowest, start=1):
        base = 0.0
        for field, name, value in _parts(turn):
            tip = f"{name} {wording.seconds(value)}; {_tip(turn)}"
            frame.column(at - 0.4, at + 0.4, base, base + value, _PART_COLORS[field], tip)
            base += value
    return frame


def _parts(turn: TurnReport) -> list[tuple[str, str, float]]:
    taken = ((field, name, getattr(turn.split, field, None)) for field, name, _ in wording.PARTS)
    return [(field, name, value) for field, name, value in taken if value]


def time_line(turns: Sequence[TurnReport]) -> svg.Frame | None:
    """When each cause occurred, a lane a cause."""
    points = _stamped(turns)
    if not points:
        return None
    lanes = causes_in([turn for _, turn in points])[::-1]
    x = svg.time([at for at, _ in points])
    frame = svg.Frame("Time line of causes", x, lanes, x_title="end of the turn")
    for at, turn in _thinned(points):
        frame.mark(at, lanes.index(turn.cause), "bar", color(turn.cause), _tip(turn))
    return frame


def gaps(turns: Sequence[TurnReport], ttl_s: float | None) -> svg.Frame | None:
    """How long conversations paused between turns, stacked by cause, against the time decode keeps blocks."""
    paused = [(turn.gap_s, turn.cause) for turn in turns if turn.gap_s and turn.gap_s > 0]
    if not paused:
        return None
    limit = ttl_s or DEFAULT_TTL_S
    counts: dict[int, dict[str, int]] = {}
    for gap, cause in paused:
        column = counts.setdefault(math.floor(math.log10(gap) * _COLUMNS_PER_DECADE), {})
        column[cause] = column.get(cause, 0) + 1
    x = svg.logarithmic(
        [*(gap for gap, _ in paused), limit, _edge(min(counts)), _edge(max(counts) + 1)], wording.seconds
    )
    y = svg.linear([sum(column.values()) for column in counts.values()], _whole)
    frame = svg.Frame("Gaps between turns against TTL", x, y, x_title="gap since the previous turn", y_title="turns")
    for at, column in sorted(counts.items()):
        _stack(frame, at, column)
    frame.limit(limit, f"decode keeps blocks {wording.seconds(limit)}" + ("" if ttl_s else " (vLLM's default)"))
    return frame


def transfers(turns: Sequence[TurnReport]) -> svg.Frame | None:
    """Transfer time against size, one mark a transfer."""
    points = [(turn.transfer_bytes, turn.transfer_s, turn) for turn in turns if turn.transfer_bytes and turn.transfer_s]
    if not points:
        return None
    x = svg.logarithmic([size for size, _, _ in points], wording.size)
    y = svg.logarithmic([taken for _, taken, _ in points], wording.seconds)
    frame = svg.Frame("Transfer time by size", x, y, x_title="bytes read", y_title="transfer time")
    for size, taken, turn in _thinned(points):
        frame.mark(size, taken, _mark(turn), color(turn.cause), _tip(turn))
    return frame


def _stack(frame: svg.Frame, at: int, column: dict[str, int]) -> None:
    base = 0
    for cause in sorted(column, key=list(_COLORS).index if column.keys() <= _COLORS.keys() else str):
        top = base + column[cause]
        frame.column(
            _edge(at), _edge(at + 1), base, top, color(cause), f"{cause}: {wording.counted(column[cause], 'turn')}"
        )
        base = top


def _edge(column: int) -> float:
    return float(10 ** (column / _COLUMNS_PER_DECADE))


def _thinned(points: Sequence[_Point]) -> Sequence[_Point]:
    """Keep every n-th point, so that a page of a million turns still opens."""
    return points[:: math.ceil(len(points) / _MOST_MARKS)]


def _mark(turn: TurnReport) -> str:
    return "circle" if turn.cause in OUTCOMES else "diamond"


def _tip(turn: TurnReport) -> str:
    where = f"{turn.conversation or 'no conversation'} turn {wording.count(turn.turn)}"
    return f"{wording.cause_name(turn.cause, turn.detail)}, {where}, TTFT {wording.seconds(turn.ttft_s)}, {turn.request_id}"


def _stamped(turns: Sequence[TurnReport]) -> list[tuple[float, TurnReport]]:
    """Return the turns whose time is known; with or without a year, whichever are more, since the two share no axis."""
    points = [(at, turn) for turn in turns if (at := _stamp(turn.ts or "")) is not None]
    dated = [(at, turn) for at, turn in points if clock.dated(at)]
    return dated if 2 * len(dated) >= len(points) else [point for point in points if not clock.dated(point[0])]


def _stamp(text: str) -> float | None:
    at = clock.iso_stamp(text)
    if at is not None:
        return at
    undated = _UNDATED.fullmatch(text)
    return clock.header_stamp(undated[1], undated[2]) if undated else None


def _whole(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else ""
