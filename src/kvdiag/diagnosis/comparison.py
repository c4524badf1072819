"""Two sets of turns side by side, and whether they differ by more than noise.

Intervals are cluster bootstraps over conversations, since turns of one conversation are alike; they hold jointly at
95 % (Bonferroni), so that many rows do not make a difference by themselves.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from kvdiag.diagnosis.findings import HOLDOUT
from kvdiag.events import TURN_BUCKETS, turn_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvdiag.diagnosis.report import Report, TurnReport

Change = Literal["better", "worse", "within noise", "too few"]

ENOUGH_CONVERSATIONS: Final = 5
ENOUGH_TURNS: Final = 10
_RESAMPLES: Final = 2000
_MOST_TURNS: Final = 2000
"""More turns than this are thinned: the interval widens a little, the wait does not grow."""
_JOINT_ERROR: Final = 0.05
_REUSED: Final = frozenset({"local_hit", "remote_hit"})

Cluster = list[float]
"""The values of one conversation."""


class Row(msgspec.Struct, kw_only=True):
    """One measure on both sides; `low` and `high` bound the change b - a. None where there is nothing to measure."""

    measure: str
    unit: Literal["s", "share"]
    turns_a: int
    turns_b: int
    a: float | None
    b: float | None
    low: float | None = None
    high: float | None = None
    change: Change


class Comparison(msgspec.Struct, kw_only=True):
    """What changed from A to B."""

    schema: str = "kvdiag.comparison/1"
    seed: int
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class _Measure:
    name: str
    unit: Literal["s", "share"]
    statistic: Callable[[Cluster], float]
    value: Callable[[TurnReport], float | None]
    """None leaves the turn out."""
    lower_is_better: bool = True


def compare(a: Report, b: Report, *, seed: int = 0) -> Comparison:
    """Return the measures that both sides can have, each with the interval of its change."""
    sides = (a.per_turn or [], b.per_turn or [])
    measured = [(measure, _clusters(measure, sides[0]), _clusters(measure, sides[1])) for measure in _measures()]
    present = [(measure, before, after) for measure, before, after in measured if before or after]
    error = _JOINT_ERROR / max(1, sum(_enough(before) and _enough(after) for _, before, after in present))
    rows = [_row(measure, before, after, random.Random(seed), error) for measure, before, after in present]  # noqa: S311 - resampling
    return Comparison(seed=seed, rows=rows)


def arms(report: Report) -> tuple[Report, Report]:
    """Return the conversations from which the router withheld reuse on purpose, and the others."""
    turns = report.per_turn or []
    held_out = {turn.conversation for turn in turns if turn.detail == HOLDOUT}
    off = [turn for turn in turns if turn.conversation in held_out]
    on = [turn for turn in turns if turn.conversation not in held_out]
    return msgspec.structs.replace(report, per_turn=off), msgspec.structs.replace(report, per_turn=on)


def reused(turn: TurnReport) -> bool:
    """Return whether any of the prompt's KV came from an earlier turn."""
    return turn.cause in _REUSED or bool(turn.remote_tokens)


def _measures() -> list[_Measure]:
    median = statistics.median
    ttft = [_Measure(f"TTFT, turn {bucket}", "s", median, _ttft_in(bucket)) for bucket in TURN_BUCKETS]
    by_outcome = [
        _Measure("TTFT, reused", "s", median, lambda turn: turn.ttft_s if _judged(turn) and reused(turn) else None),
        _Measure(
            "TTFT, not reused", "s", median, lambda turn: turn.ttft_s if _judged(turn) and not reused(turn) else None
        ),
    ]
    return [
        _Measure("TTFT, later turns", "s", median, lambda turn: turn.ttft_s if _later(turn) else None),
        *ttft,
        *by_outcome,
        _Measure(
            "hit share of later turns",
            "share",
            statistics.fmean,
            lambda turn: float(reused(turn)) if _judged(turn) else None,
            lower_is_better=False,
        ),
        _Measure("lost share of prompt tokens", "share", statistics.fmean, _lost),
    ]


def _later(turn: TurnReport) -> bool:
    return turn.cause != "first_turn" if turn.turn is None else turn.turn > 1


def _judged(turn: TurnReport) -> bool:
    """Tell whether it is a later turn of which something says whether it reused: a handle that was sent does not."""
    return _later(turn) and (turn.cause != "unexplained" or turn.remote_tokens is not None)


def _ttft_in(bucket: str) -> Callable[[TurnReport], float | None]:
    return lambda turn: turn.ttft_s if turn.turn is not None and turn_bucket(turn.turn) == bucket else None


def _lost(turn: TurnReport) -> float | None:
    if not _later(turn) or not turn.prompt_tokens or turn.lost_tokens is None:
        return None
    return turn.lost_tokens / turn.prompt_tokens


def _clusters(measure: _Measure, turns: Sequence[TurnReport]) -> list[Cluster]:
    values = [
        (turn.conversation or turn.request_id, value) for turn in turns if (value := measure.value(turn)) is not None
    ]
    clusters: dict[str, Cluster] = defaultdict(list)
    for conversation, value in values[:: math.ceil(len(values) / _MOST_TURNS) or 1]:
        clusters[conversation].append(value)
    return list(clusters.values())


def _enough(clusters: Sequence[Cluster]) -> bool:
    return len(clusters) >= ENOUGH_CONVERSATIONS and sum(map(len, clusters)) >= ENOUGH_TURNS


def _row(measure: _Measure, before: list[Cluster], after: list[Cluster], dice: random.Random, error: float) -> Row:
    row = Row(
        measure=measure.name,
        unit=measure.unit,
        turns_a=sum(map(len, before)),
        turns_b=sum(map(len, after)),
        a=_statistic(measure, before) if before else None,
        b=_statistic(measure, after) if after else None,
        change="too few",
    )
    if _enough(before) and _enough(after):
        row.low, row.high = _interval(measure, before, after, dice, error)
        row.change = _change(row.low, row.high, lower_is_better=measure.lower_is_better)
    return row


def _statistic(measure: _Measure, clusters: Sequence[Cluster]) -> float:
    return measure.statistic([value for cluster in clusters for value in cluster])


def _interval(
    measure: _Measure, before: list[Cluster], after: list[Cluster], dice: random.Random, error: float
) -> tuple[float, float]:
    changes = sorted(
        _statistic(measure, dice.choices(after, k=len(after)))
        - _statistic(measure, dice.choices(before, k=len(before)))
        for _ in range(_RESAMPLES)
    )
    cut = math.floor(_RESAMPLES * error / 2)
    return changes[cut], changes[-1 - cut]


def _change(low: float, high: float, *, lower_is_better: bool) -> Change:
    if low <= 0 <= high:
        return "within noise"
    return "better" if (high < 0) is lower_is_better else "worse"
