"""One turn as the logs tell it: every spelling of its request id leads here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kvdiag.events import PROBE

if TYPE_CHECKING:
    from kvdiag.diagnosis.engines import EngineLog, Failure
    from kvdiag.diagnosis.options import LogRole
    from kvdiag.diagnosis.report import Evidence
    from kvdiag.events import TurnRecord

_MAX_MARKS: Final = 3

Teller = tuple[str, int]
"""A process: the name of its log and its id."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One fact about a turn: who said so, where, and what."""

    evidence: Evidence
    engine: EngineLog
    stamp: float | None = None
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Lookup:
    """What the router knew when the turn came in: a hit, or why there was no handle."""

    result: str
    evidence: list[Evidence]
    certain: bool = True
    gap_s: float | None = None
    """From the end of the turn before."""


@dataclass(slots=True)
class Turn:
    """Everything that was seen of one turn."""

    id: str
    marks: dict[str, list[Mark]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    conversation: str | None = None
    number: int | None = None
    lookup: Lookup | None = None
    handle: str | None = None
    """The request on decode whose blocks this turn was to read."""
    first_seen: float | None = None
    prefill_s: float | None = None
    router_s: float | None = None
    """What a router says that it took itself."""
    endpoints: dict[LogRole, str] = field(default_factory=dict)
    """The engines that a router says it chose."""
    blocks: int | None = None
    """Blocks that decode held when the turn had ended: a measure of its length."""
    tokens_lost: int | None = None
    local_tokens: int | None = None
    remote_tokens: int | None = None
    counted: str | None = None
    """How it ended by its router's word, where that line was only counted."""
    spelled: dict[Teller, str] = field(default_factory=dict)
    """The id as each process spells it, were no suffix added, where it ends like one with a suffix."""
    record: TurnRecord | None = None
    record_at: Evidence | None = None

    @property
    def is_probe(self) -> bool:
        """Whether `kvdiag doctor` sent it."""
        return self.id.startswith(PROBE)

    @property
    def is_unanswered(self) -> bool:
        """Whether prefill's answer is missing, where the router's log would tell of it."""
        return self.record is None and self.counted is None and not self.seen("prefill_done")

    @property
    def first_token_s(self) -> float | None:
        """Return the time to first token, or that of prefill where only this is known; seconds."""
        if self.record is not None and self.record.ttft_s is not None:
            return self.record.ttft_s
        return self.prefill_s

    def mark(self, kind: str, mark: Mark) -> None:
        """Add a fact; further ranks and repetitions of it change nothing."""
        kept = self.marks.setdefault(kind, [])
        if len(kept) < _MAX_MARKS:
            kept.append(mark)

    def absorb(self, attempt: Turn) -> None:
        """Take over what was seen of another attempt at the same turn."""
        for kind, marks in attempt.marks.items():
            for mark in marks:
                self.mark(kind, mark)
        self.failures += attempt.failures

    def seen(self, *kinds: str) -> bool:
        """Tell whether any of these facts was seen."""
        return not self.marks.keys().isdisjoint(kinds)

    def evidence(self, *kinds: str) -> list[Evidence]:
        """Return the lines of these facts, one of each engine first."""
        marks = [mark for kind in kinds for mark in self.marks.get(kind, ())]
        return [mark.evidence for mark in marks]
