"""Faults of single turns and of whole logs, tallied by cause, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kvdiag.causes import CAUSES, Confidence
from kvdiag.diagnosis.report import Evidence, Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HOLDOUT: Final = "holdout"
"""The detail of turns that a router with a holdout share keeps from reusing."""
MAX_EVIDENCE: Final = 12
_PER_FILE: Final = 5
_RANK: Final[dict[Confidence, int]] = {"certain": 0, "likely": 1, "possible": 2}
# What a turn costs whose seconds no input tells: a failed or suspect answer is worse than a recomputed prompt.
_WEIGHT_S: Final = {"suspect_kv": 8.0, "client": 0.5, "missing_metadata": 1.0, "feature_off": 1.0}
_FAILED_S: Final = 5.0
_DEFAULT_S: Final = 2.0


@dataclass(slots=True)
class Tally:
    """All that is known of one cause."""

    cause: str
    detail: str | None
    confidence: Confidence = "possible"
    turns: int = 0
    failed: int = 0
    slow_turns: int = 0
    lost_tokens: int | None = None
    lost_seconds: float | None = None
    evidence: list[Evidence] = field(default_factory=list)
    members: set[str] = field(default_factory=set)
    """Turns without a fault of their own that it explains, by their ids."""
    summary: str | None = None
    """What to say instead of the cause's meaning, where a rule knows better."""
    next_step: str | None = None

    @classmethod
    def of(
        cls, cause: str, detail: str | None, confidence: Confidence, turns: float, evidence: Iterable[Evidence]
    ) -> Tally:
        """Return what one rule found in whole logs."""
        tally = cls(cause, detail)
        tally.add(confidence, evidence, turns=round(turns))
        return tally

    def add(self, confidence: Confidence, evidence: Iterable[Evidence], *, turns: int = 1) -> None:
        """Count further turns; the best confidence of any of them is the tally's."""
        self.turns += turns
        self.confidence = min(self.confidence, confidence, key=_RANK.__getitem__)
        if len(self.evidence) < MAX_EVIDENCE * 4:
            self.evidence += evidence

    def lose(self, tokens: int | None, seconds: float | None) -> None:
        """Add what a turn lost, as far as it is known."""
        if tokens is not None:
            self.lost_tokens = (self.lost_tokens or 0) + tokens
        if seconds is not None:
            self.lost_seconds = (self.lost_seconds or 0.0) + seconds

    @property
    def cost(self) -> float:
        """Return what to sort by, in seconds: measured where it can be, else weighed."""
        weighed = self.failed * _FAILED_S + (self.turns - self.failed) * _WEIGHT_S.get(self.cause, _DEFAULT_S)
        return max(self.lost_seconds or 0.0, weighed)

    @property
    def on_purpose(self) -> bool:
        """Whether somebody chose it: an experiment is shown, and is no fault."""
        return (self.cause, self.detail) == ("missing_metadata", HOLDOUT)

    def finding(self) -> Finding:
        """Return the tally as the report shows it."""
        return Finding(
            cause=self.cause,
            detail=self.detail,
            confidence=self.confidence,
            turns=self.turns,
            slow_turns=self.slow_turns,
            lost_tokens=self.lost_tokens,
            lost_seconds=None if self.lost_seconds is None else round(self.lost_seconds, 3),
            evidence=choose(self.evidence),
            next_step=self.next_step or CAUSES[self.cause].remedy(self.detail),
            runbook=self.cause,
        )


def choose(evidence: Iterable[Evidence]) -> list[Evidence]:
    """Return the lines to show: the first ones of every file, each once."""
    unique = {(item.path, item.line): item for item in evidence}
    kept: list[Evidence] = []
    by_file: dict[str, int] = {}
    for item in unique.values():
        by_file[item.path] = by_file.get(item.path, 0) + 1
        if by_file[item.path] <= _PER_FILE:
            kept.append(item)
    return kept[:MAX_EVIDENCE]


def ranked(tallies: Iterable[Tally]) -> list[Tally]:
    """Return the tallies, surest and dearest first; no time is as dear as an answer that may be wrong."""
    return sorted(
        tallies,
        key=lambda tally: (tally.confidence == "possible", tally.cause != "suspect_kv", -tally.cost, tally.cause),
    )


def turns_of(tallies: Mapping[tuple[str, str | None], Tally], *causes: str) -> int:
    """Return the turns that any of these causes was found in."""
    return sum(tally.turns for (cause, _), tally in tallies.items() if cause in causes)
