"""From observed gaps, sizes and speeds to the three settings that decide what is reused and what it costs to keep."""

from __future__ import annotations

import datetime
import math
import statistics
from collections import defaultdict
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvdiag.diagnosis.report import Report, TurnReport

READER_MARGIN_S: Final = 5.0
"""vLLM declines a read when less than this is left of decode's TTL."""
ROUTER_MARGIN_S: Final = 7.0
"""The router lets go this much before decode does: the reader's margin, and time to queue before the read."""
ENOUGH_GAPS: Final = 30
ENOUGH_POINTS: Final = 10
_TTLS: Final = (15, 30, 60, 120, 240, 480, 900, 1800, 3600)
_LENGTHS: Final = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
_MOST_FITTED: Final = 300
_FAILED: Final = frozenset({"upstream_error", "client", "queueing", "kv_pressure", "slow_transfer"})
"""Turns whose prefill time says nothing about the speed of prefill."""


class Line(msgspec.Struct, kw_only=True, frozen=True):
    """Time as a line over tokens: `fixed_s + per_token_s * tokens`."""

    fixed_s: float
    per_token_s: float
    points: int


class TtlRow(msgspec.Struct, kw_only=True, frozen=True):
    """What a decoder_kv_blocks_ttl would have meant for the turns observed."""

    ttl_s: float
    reusable: float
    """Share of later turns whose gap ends before prefill would decline the read."""
    held_tokens: float | None
    """Prompt tokens held on decode for later turns, averaged over time; None where no times were seen."""
    held_bytes: float | None


class CostRow(msgspec.Struct, kw_only=True, frozen=True):
    """What this many tokens take, in seconds."""

    tokens: int
    compute_s: float
    """Beyond what the rest of the prompt takes to compute anyway."""
    read_s: float


class Advice(msgspec.Struct, kw_only=True, frozen=True):
    """A value for one setting; None where the data are too thin or no value helps, and then why."""

    setting: str
    value: int | None
    unit: str
    why: str


class Tuning(msgspec.Struct, kw_only=True):
    """Everything that `kvdiag tune` has to say. Speeds are None where too few turns tell them."""

    schema: str = "kvdiag.tuning/1"
    turns: int
    gaps: int
    bytes_per_token: float | None
    prefill: Line | None
    read: Line | None
    rows: list[TtlRow]
    costs: list[CostRow]
    advice: list[Advice]


class _Stay(msgspec.Struct, frozen=True):
    """One finished turn's blocks on decode: how many tokens, and when the conversation came back for them."""

    tokens: int
    gap_s: float


def tune(report: Report, *, target: float = 0.95, memory: float | None = None) -> Tuning:
    """Return what the turns of `report` suggest.

    `target` is the share of later turns that should find their blocks, `memory` the bytes that decode may hold for
    them on average, which wins where both cannot be had.
    """
    turns = report.per_turn or []
    gaps = [turn.gap_s for turn in turns if turn.gap_s is not None]
    stays = _stays(turns)
    duration = _duration(turns)
    size = _bytes_per_token(turns)
    current = report.settings.decoder_kv_blocks_ttl
    ttl = _ttl_advice(gaps, stays, duration, size, target, memory)
    shown = sorted({float(seconds) for seconds in (*_TTLS, current, ttl.value) if seconds})
    prefill, read = fit(_prefill_points(turns)), fit(_read_points(turns))
    return Tuning(
        turns=len(turns),
        gaps=len(gaps),
        bytes_per_token=size,
        prefill=prefill,
        read=read,
        rows=[_row(seconds, gaps, stays, duration, size) for seconds in shown] if gaps else [],
        costs=[_cost(tokens, prefill, read) for tokens in _LENGTHS] if prefill and read else [],
        advice=[ttl, _router_advice(ttl), _threshold_advice(prefill, read)],
    )


def fit(points: Sequence[tuple[float, float]]) -> Line | None:
    """Return the Theil-Sen line through (tokens, seconds); None where too few or too alike to tell a slope."""
    used = points[:: math.ceil(len(points) / _MOST_FITTED) or 1]
    if len(used) < ENOUGH_POINTS or max(used)[0] < 1.5 * min(used)[0]:
        return None
    slope = statistics.median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(used, 2) if x1 != x2)
    return Line(fixed_s=statistics.median(y - slope * x for x, y in used), per_token_s=slope, points=len(points))


def _prefill_points(turns: Iterable[TurnReport]) -> list[tuple[float, float]]:
    computed = (turn for turn in turns if turn.computed_tokens and not turn.remote_tokens and turn.cause not in _FAILED)
    timed = ((turn.computed_tokens, _compute_s(turn)) for turn in computed)
    return [(float(tokens), taken) for tokens, taken in timed if tokens and taken]


def _compute_s(turn: TurnReport) -> float | None:
    split = turn.split.prefill_compute if turn.split else None
    return split or turn.prefill_s


def _read_points(turns: Iterable[TurnReport]) -> list[tuple[float, float]]:
    timed = ((turn.remote_tokens, _read_s(turn)) for turn in turns)
    return [(float(tokens), taken) for tokens, taken in timed if tokens and taken]


def _read_s(turn: TurnReport) -> float | None:
    split = turn.split.read if turn.split else None
    return split or turn.transfer_s


def _bytes_per_token(turns: Iterable[TurnReport]) -> float | None:
    sizes = [turn.transfer_bytes / turn.remote_tokens for turn in turns if turn.transfer_bytes and turn.remote_tokens]
    return statistics.median(sizes) if sizes else None


def _stays(turns: Iterable[TurnReport]) -> list[_Stay]:
    conversations: dict[str, list[TurnReport]] = defaultdict(list)
    stays = []
    for turn in turns:
        if turn.conversation:
            conversations[turn.conversation].append(turn)
        else:  # decode keeps the blocks of single requests all the same
            stays.append(_Stay(turn.prompt_tokens or 0, math.inf))
    for members in conversations.values():
        members.sort(key=lambda turn: turn.turn or 0)
        for turn, following in pairwise(members):
            stays.append(_Stay(turn.prompt_tokens or 0, math.inf if following.gap_s is None else following.gap_s))
        stays.append(_Stay(members[-1].prompt_tokens or 0, math.inf))
    return stays


def _duration(turns: Iterable[TurnReport]) -> float | None:
    stamps = []
    for turn in turns:
        try:
            at = datetime.datetime.fromisoformat(turn.ts or "")
        except ValueError:
            continue
        stamps.append((at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp())
    return (max(stamps) - min(stamps) or None) if stamps else None


def _reusable(ttl_s: float, gaps: Sequence[float]) -> float:
    return sum(gap < ttl_s - READER_MARGIN_S for gap in gaps) / len(gaps)


def _held_tokens(ttl_s: float, stays: Sequence[_Stay], duration: float | None) -> float | None:
    return sum(stay.tokens * min(stay.gap_s, ttl_s) for stay in stays) / duration if duration else None


def _row(
    ttl_s: float, gaps: Sequence[float], stays: Sequence[_Stay], duration: float | None, size: float | None
) -> TtlRow:
    tokens = _held_tokens(ttl_s, stays, duration)
    held = tokens * size if tokens is not None and size else None
    return TtlRow(ttl_s=ttl_s, reusable=_reusable(ttl_s, gaps), held_tokens=tokens, held_bytes=held)


def _cost(tokens: int, prefill: Line, read: Line) -> CostRow:
    read_s = max(read.fixed_s, 0.0) + max(read.per_token_s, 0.0) * tokens
    return CostRow(tokens=tokens, compute_s=max(prefill.per_token_s, 0.0) * tokens, read_s=read_s)


def _ttl_advice(
    gaps: Sequence[float],
    stays: Sequence[_Stay],
    duration: float | None,
    size: float | None,
    target: float,
    memory: float | None,
) -> Advice:
    setting, unit = "decoder_kv_blocks_ttl", "s"
    if len(gaps) < ENOUGH_GAPS:
        why = f"too thin: {len(gaps)} gaps between turns seen, {ENOUGH_GAPS} needed"
        if not gaps:
            why += "; they are in a router's turn log (--turn-log) and in the log of vLLM's multi-turn proxy"
        return Advice(setting=setting, value=None, unit=unit, why=why)
    wanted = _rounded_up(sorted(gaps)[math.ceil(target * len(gaps)) - 1] + READER_MARGIN_S)
    why = f"{_reusable(wanted, gaps):.0%} of {len(gaps)} later turns would find their blocks"
    if memory is None:
        return Advice(setting=setting, value=wanted, unit=unit, why=why)
    if duration is None or size is None:
        why = "too thin: no transfers or no times seen, so the memory that a TTL holds is unknown"
        return Advice(setting=setting, value=None, unit=unit, why=why)
    affordable = _longest_within(memory / size, wanted, stays, duration)
    if affordable == 0:
        why = "the memory allows no retention at all: even one second holds more"
    elif affordable < wanted:
        why = f"the memory allows no more; {_reusable(affordable, gaps):.0%} of {len(gaps)} later turns would find their blocks"
    return Advice(setting=setting, value=affordable or None, unit=unit, why=why)


def _longest_within(tokens: float, ttl_s: int, stays: Sequence[_Stay], duration: float) -> int:
    """Return the longest TTL up to `ttl_s`, whole seconds, that holds no more than `tokens` on average."""
    low, high = 0, ttl_s
    while low < high:
        middle = (low + high + 1) // 2
        held = _held_tokens(middle, stays, duration)
        low, high = (middle, high) if held is not None and held <= tokens else (low, middle - 1)
    return low


def _rounded_up(seconds: float) -> int:
    step = next(step for limit, step in ((60, 5), (600, 10), (math.inf, 60)) if seconds <= limit)
    return math.floor(seconds / step + 1) * step


def _router_advice(ttl: Advice) -> Advice:
    setting, unit = "router handle TTL", "s"
    if ttl.value is None:
        return Advice(setting=setting, value=None, unit=unit, why="follows decoder_kv_blocks_ttl")
    if ttl.value <= ROUTER_MARGIN_S:
        return Advice(
            setting=setting,
            value=None,
            unit=unit,
            why="decode's TTL is too short for any reuse: free memory or turn reuse off",
        )
    why = f"decode's TTL less {READER_MARGIN_S:.0f} s at which prefill declines and {ROUTER_MARGIN_S - READER_MARGIN_S:.0f} s to reach the read"
    return Advice(setting=setting, value=int(ttl.value - ROUTER_MARGIN_S), unit=unit, why=why)


def _threshold_advice(prefill: Line | None, read: Line | None) -> Advice:
    setting, unit = "kv_recompute_threshold", "tokens"
    thin = [name for name, line in (("computed prefills", prefill), ("reads", read)) if line is None]
    if prefill is None or read is None:
        why = f"too thin: {ENOUGH_POINTS} {' and '.join(thin)} of different lengths, with token counts and times, are needed"
        return Advice(setting=setting, value=None, unit=unit, why=why)
    speeds = f"a token takes {prefill.per_token_s * 1e6:.3g} us to compute and {read.per_token_s * 1e6:.3g} us to read"
    if prefill.per_token_s <= read.per_token_s:
        return Advice(setting=setting, value=None, unit=unit, why=f"reading never pays: {speeds}")
    tokens = max(1, math.ceil(read.fixed_s / (prefill.per_token_s - read.per_token_s)))
    return Advice(
        setting=setting,
        value=tokens,
        unit=unit,
        why=f"{speeds}, a read costs {max(read.fixed_s, 0) * 1e3:.3g} ms besides",
    )
