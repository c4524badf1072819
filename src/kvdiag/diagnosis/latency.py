"""Time: which turns were slow, where their time went, what reuse would have saved them.

Everything is measured against this very log: turns of the same outcome and a like prompt length.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final

from kvdiag.diagnosis.digest import REUSED, length_class
from kvdiag.diagnosis.ids import spellings
from kvdiag.diagnosis.options import FELT_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvdiag.diagnosis.digest import Group
    from kvdiag.diagnosis.series import Series
    from kvdiag.diagnosis.turns import Turn

_ENOUGH: Final = 5
_ENOUGH_HITS: Final = 2
# Slow without a limit given: well outside what like turns take, and long enough to be felt.
_FACTOR: Final = 3.0
_DEVIATIONS: Final = 6.0
_LONG_S: Final = 2.0
_AS_EVER: Final = 2.0
_MANY_BLOCKS: Final = 64


def length_of(turn: Turn) -> int:
    """Return the prompt's length class: by its tokens, or by the blocks held at the end."""
    return length_class((turn.record.prompt_tokens if turn.record is not None else None) or turn.blocks)


@dataclass(slots=True)
class Baseline:
    """What turns of each outcome and length take in these logs."""

    limit_s: float | None = None
    """A fixed limit, seconds, instead of the baseline."""
    times: dict[Group, list[float]] = field(default_factory=lambda: defaultdict(list))
    per_token: list[float] = field(default_factory=list)
    """Seconds of prefill for each token computed."""
    _limits: dict[Group, float] = field(default_factory=dict)
    _hits: dict[int, float | None] = field(default_factory=dict)
    _pace: float | None = None

    @classmethod
    def of(
        cls, turns: Iterable[tuple[Turn, str | None]], limit_s: float | None, calm: Mapping[Group, Series[float]]
    ) -> Baseline:
        """Return the baseline of turns, each with its outcome, and of `calm` ones that have no row."""
        baseline = cls(limit_s)
        for turn, outcome in turns:
            seconds = turn.first_token_s
            if seconds is not None:
                baseline.times[outcome in REUSED, length_of(turn)].append(seconds)
            record = turn.record
            if record is not None and record.prefill_s and record.computed_tokens:
                baseline.per_token.append(record.prefill_s / record.computed_tokens)
        for group, kept in calm.items():
            # Both parts as thin, so that neither outweighs the other.
            baseline.times[group] = [*baseline.times[group][:: kept.stride], *kept.samples]
        return baseline

    def is_slow(self, turn: Turn, outcome: str | None) -> bool:
        """Tell whether the turn took longer than the limit, or far longer than like turns."""
        seconds = turn.first_token_s
        if seconds is None:
            return False
        if self.limit_s is not None:
            return seconds >= self.limit_s
        return seconds >= FELT_S and seconds > self._limit((outcome in REUSED, length_of(turn)))

    def is_far_slower(self, turn: Turn, outcome: str | None) -> bool:
        """Tell whether the turn was slow beyond what more new tokens or a busy moment do."""
        if not self.is_slow(turn, outcome) or self.limit_s is not None:
            return self.is_slow(turn, outcome)
        return (turn.first_token_s or 0.0) >= self._limit((outcome in REUSED, length_of(turn))) + _LONG_S

    def _limit(self, group: Group) -> float:
        """Return the time from which a turn of this group is slow; infinite where too few tell."""
        if group not in self._limits:
            like = self.times.get(group, [])
            middle = median(like) if len(like) >= _ENOUGH else math.inf
            spread = median(abs(value - middle) for value in like) if len(like) >= _ENOUGH else 0.0
            self._limits[group] = max(middle * _FACTOR, middle + _DEVIATIONS * spread)
        return self._limits[group]

    def took_as_ever(self, turn: Turn) -> bool:
        """Tell whether the turn's new tokens explain its prefill: at the pace of these logs they take about as long."""
        record = turn.record
        if record is None or not record.prefill_s or not record.computed_tokens or len(self.per_token) < _ENOUGH:
            return False
        return record.prefill_s <= _AS_EVER * record.computed_tokens * self._median_pace()

    def _median_pace(self) -> float:
        self._pace = self._pace or median(self.per_token)
        return self._pace

    def saved_s(self, turn: Turn) -> float | None:
        """Return how much sooner the turn would have answered with its blocks read back; None where no hit tells."""
        seconds, length = turn.first_token_s, length_of(turn)
        if length not in self._hits:
            self._hits[length] = self._hits_like(length)
        hit = self._hits[length]
        return None if seconds is None or hit is None else min(max(seconds - hit, 0.0), self._most(turn))

    def _most(self, turn: Turn) -> float:
        """Return the time that computing the lost tokens can take at most, by the pace of these logs."""
        lost = turn.record.lost_tokens if turn.record is not None else None
        if lost is None or not self.per_token:
            return math.inf
        return lost * self._median_pace()

    def _hits_like(self, length: int) -> float | None:
        """Return what hits of the nearest length class take that has enough of them."""
        hits = {known: values for (reused, known), values in self.times.items() if reused}
        near = [known for known, values in hits.items() if len(values) >= _ENOUGH_HITS]
        if near:
            return median(hits[min(near, key=lambda known: (abs(known - length), known))])
        every = [value for values in hits.values() for value in values]
        return median(every) if len(every) >= _ENOUGH_HITS else None


def long_turns(turns: Iterable[Turn]) -> list[Turn]:
    """Return the slow turns among those that read back whose conversation grew far more than usual.

    How much a turn added is the difference of the blocks that decode held after it and after the turn before.
    """
    known = {turn.id: turn for turn in turns if turn.blocks is not None}
    hits = [turn for turn in known.values() if turn.prefill_s is not None and turn.handle is not None]
    added = {
        turn.id: (turn.blocks or 0) - (known[before].blocks or 0)
        for turn in hits
        for before in spellings(turn.handle or "")
        if before in known
    }
    if len(added) < _ENOUGH:
        return []
    usual = sorted(turn.prefill_s or 0.0 for turn in hits)[len(hits) // 4]
    much = max(median(added.values()) * _FACTOR, _MANY_BLOCKS)
    limit = max(_LONG_S, usual * 2)
    return [turn for turn in hits if (turn.prefill_s or 0.0) >= limit and added.get(turn.id, 0) >= much]
