"""Time: which turns were slow, where their time went, what reuse would have saved them.

Everything is measured against this very log: turns of the same outcome and a like prompt length.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final

from kvdiag.diagnosis.ids import external_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvdiag.diagnosis.turns import Turn

_ENOUGH: Final = 5
_ENOUGH_HITS: Final = 2
# Slow without a limit given: well outside what like turns take, and long enough to be felt.
_FACTOR: Final = 3.0
_DEVIATIONS: Final = 6.0
_FELT_S: Final = 0.5
_LONG_S: Final = 2.0
_MANY_BLOCKS: Final = 64
_REUSED: Final = frozenset({"remote_hit", "local_hit", "below_threshold"})


def length_class(turn: Turn) -> int:
    """Return the prompt's length class: doublings of tokens (or of blocks held at the end), 0 where unknown."""
    size = turn.record.prompt_tokens if turn.record is not None and turn.record.prompt_tokens else turn.blocks
    return (size or 0).bit_length()


@dataclass(slots=True)
class Baseline:
    """What turns of each outcome and length take in these logs."""

    limit_s: float | None = None
    """A fixed limit, seconds, instead of the baseline."""
    reused: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    computed: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    per_token: list[float] = field(default_factory=list)
    """Seconds of prefill for each token computed."""

    @classmethod
    def of(cls, turns: Iterable[tuple[Turn, str | None]], limit_s: float | None) -> Baseline:
        """Return the baseline of turns, each with its outcome."""
        baseline = cls(limit_s)
        for turn, outcome in turns:
            seconds = turn.first_token_s
            if seconds is not None:
                group = baseline.reused if outcome in _REUSED else baseline.computed
                group[length_class(turn)].append(seconds)
            record = turn.record
            if record is not None and record.prefill_s and record.computed_tokens:
                baseline.per_token.append(record.prefill_s / record.computed_tokens)
        return baseline

    def is_slow(self, turn: Turn, outcome: str | None) -> bool:
        """Tell whether the turn took longer than the limit, or far longer than like turns."""
        seconds = turn.first_token_s
        if seconds is None:
            return False
        if self.limit_s is not None:
            return seconds >= self.limit_s
        like = (self.reused if outcome in _REUSED else self.computed).get(length_class(turn), [])
        if len(like) < _ENOUGH or seconds < _FELT_S:
            return False
        middle = median(like)
        spread = median(abs(value - middle) for value in like)
        return seconds > max(middle * _FACTOR, middle + _DEVIATIONS * spread)

    def saved_s(self, turn: Turn) -> float | None:
        """Return how much sooner the turn would have answered with its blocks read back; None where no hit tells."""
        seconds = turn.first_token_s
        hits = self._hits_like(length_class(turn))
        if seconds is None or hits is None:
            return None
        return min(max(seconds - median(hits), 0.0), self._most(turn))

    def _most(self, turn: Turn) -> float:
        """Return the time that computing the lost tokens can take at most, by the pace of these logs."""
        lost = turn.record.lost_tokens if turn.record is not None else None
        return lost * median(self.per_token) if lost is not None and self.per_token else math.inf

    def _hits_like(self, length: int) -> list[float] | None:
        """Return the times of hits of the nearest length class that has enough of them."""
        near = sorted((k for k, v in self.reused.items() if len(v) >= _ENOUGH_HITS), key=lambda k: (abs(k - length), k))
        if near:
            return self.reused[near[0]]
        every = [value for values in self.reused.values() for value in values]
        return every if len(every) >= _ENOUGH_HITS else None


def long_turns(turns: Iterable[Turn]) -> list[Turn]:
    """Return the slow turns among those that read back whose conversation grew far more than usual.

    How much a turn added is the difference of the blocks that decode held after it and after the turn before.
    """
    known = {turn.id: turn for turn in turns if turn.blocks is not None}
    hits = [turn for turn in known.values() if turn.prefill_s is not None and turn.handle is not None]
    added = {
        turn.id: (turn.blocks or 0) - (known[before].blocks or 0)
        for turn in hits
        if (before := external_id(turn.handle or "")) in known
    }
    if len(added) < _ENOUGH:
        return []
    usual = sorted(turn.prefill_s or 0.0 for turn in hits)[len(hits) // 4]
    much = max(median(added.values()) * _FACTOR, _MANY_BLOCKS)
    limit = max(_LONG_S, usual * 2)
    return [turn for turn in hits if (turn.prefill_s or 0.0) >= limit and added.get(turn.id, 0) >= much]
