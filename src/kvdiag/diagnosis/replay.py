"""Logs that hold a stretch twice: files put together that overlap, a collector that began anew.

Where time steps back to a line that was there before, to the letter, what follows is a repetition for as long as its
lines are known. A line without a stamp belongs to the next one that has one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvdiag.diagnosis.facts import Fact

_REMEMBERED: Final = 50_000


@dataclass(slots=True)
class Replay:
    """Tells, of one log, which facts it tells again. It remembers the last fifty thousand, and up to as many before."""

    known: set[int] = field(default_factory=set)
    older: set[int] = field(default_factory=set)
    last: float | None = None
    on: bool = False

    def fresh(self, facts: Sequence[Fact]) -> list[Fact]:
        """Return the facts of the next block that were not told before."""
        kept: list[Fact] = []
        waiting: list[Fact] = []
        for fact in facts:
            waiting.append(fact)
            if fact.stamp is not None:
                self._decide(fact, fact.stamp)
                kept += self._new(waiting)
                waiting = []
        return kept + self._new(waiting)

    def _decide(self, fact: Fact, stamp: float) -> None:
        back = self.on or (self.last is not None and stamp < self.last)
        self.on = back and self._knows(_key(fact))
        if not self.on:
            self.last = stamp

    def _new(self, facts: Sequence[Fact]) -> list[Fact]:
        new = [fact for fact in facts if not (self.on and self._knows(_key(fact)))]
        self.known.update(map(_key, new))
        if len(self.known) > _REMEMBERED:
            self.older, self.known = self.known, set()
        return new

    def _knows(self, key: int) -> bool:
        return key in self.known or key in self.older


def _key(fact: Fact) -> int:
    return hash((fact.kind, fact.stamp, fact.pid, fact.label, fact.text))
