"""One process group's log: an engine's (prefill or decode) or a router's, and how its role is told."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final

from kvdiag.diagnosis.series import LoadSample, Series, TransferSample
from kvdiag.diagnosis.snapshots import Scrapes, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvdiag.diagnosis.options import LogRole
    from kvdiag.diagnosis.parameters import EngineConfig
    from kvdiag.diagnosis.report import Evidence

# Prefill generates one token a request; with prompts of 64 tokens and more that is below 2 % of its prompt rate.
_PREFILL_RATIO: Final = 0.02
_NAMES: Final[tuple[tuple[re.Pattern[str], LogRole], ...]] = (
    (re.compile(r"(?:^|[^a-z])(?:prefill(?:er)?s?|producer)(?:[^a-z]|$)", re.IGNORECASE), "prefill"),
    (re.compile(r"(?:^|[^a-z])(?:decode(?:r)?s?|consumer)(?:[^a-z]|$)", re.IGNORECASE), "decode"),
    (re.compile(r"(?:^|[^a-z])(?:proxy|router|gateway)(?:[^a-z]|$)", re.IGNORECASE), "router"),
)
MAX_ERRORS: Final = 64


@dataclass(slots=True)
class Failure:
    """A failed transfer, handshake or notification. `reason` comes from the traceback that follows."""

    type: str
    evidence: Evidence
    peer: str | None
    reason: str | None = None


@dataclass(slots=True)
class EngineLog:
    """What one engine (or router) wrote, as far as it does not belong to a single request."""

    name: str
    forced: LogRole | None = None
    votes: Counter[LogRole] = field(default_factory=Counter)
    configs: list[tuple[EngineConfig, Evidence]] = field(default_factory=list)
    engine_ids: dict[str, None] = field(default_factory=dict)
    former_ids: dict[str, None] = field(default_factory=dict)
    """Engine ids of earlier starts: handles that name them are void."""
    versions: dict[str, None] = field(default_factory=dict)
    bidirectional: Evidence | None = None
    ttl_s: int | None = None
    loads: dict[str, Series[LoadSample]] = field(default_factory=dict)
    transfers: Series[TransferSample] = field(default_factory=Series)
    snapshots: list[Snapshot] = field(default_factory=list)
    """The first and the last `/metrics` snapshot of the file."""
    counts: Counter[str] = field(default_factory=Counter)
    """Facts by kind, and the sums of the periodic lines' counters."""
    notes: dict[str, list[Evidence]] = field(default_factory=dict)
    """Lines that name no request, by kind, the first ones of each."""
    failures: dict[str, list[Failure]] = field(default_factory=dict)
    """Failures that name no request, by type, the first ones of each."""
    peer_reasons: dict[str, str] = field(default_factory=dict)
    """Why a peer could not be reached, by its engine id."""
    replaced: dict[str, Evidence] = field(default_factory=dict)
    """Peers that were restarted, by their former engine id."""
    invalidated: set[str] = field(default_factory=set)
    """Peers, by engine id, whose state was found void on this side: the peers themselves go on."""
    last_failure: dict[int | None, Failure] = field(default_factory=dict)
    """By process id: what a traceback belongs to."""
    calls: dict[str, bool] = field(default_factory=dict)
    """Turns whose calls to engines a router's log has not told the end of; true once prefill has answered."""
    errors: int = 0
    """Requests that it answered with 5xx since its last counters."""
    settled: LogRole | None = None
    """The role by what was read up to the last block: costs nothing to ask for."""
    starts: int = 0
    stopping: bool = False
    """Somebody stopped the process: what its parts say about each other from now on is no fault."""
    serving: bool = False
    """It came up; an exception from now on is not about its start."""
    raised: tuple[str, Evidence] | None = None
    """The first exception before it served, and its line."""
    fine: bool = False
    """Its stamps show fractions of a second."""
    is_vllm: bool = False
    """At least one line came from a vLLM logger."""

    def note(self, kind: str, evidence: Evidence) -> None:
        """Count a line and keep it as evidence while there are few."""
        self.counts[kind] += 1
        kept = self.notes.setdefault(kind, [])
        if len(kept) < MAX_ERRORS:
            kept.append(evidence)

    @property
    def config(self) -> EngineConfig | None:
        """Return the last start-up arguments."""
        return self.configs[-1][0] if self.configs else None

    @property
    def role(self) -> LogRole | None:
        """Return who wrote this: forced, configured, shown by content, by its load, or by its name."""
        if self.forced:
            return self.forced
        configured = next((config.role for config, _ in reversed(self.configs) if config.role), None)
        scraped = Scrapes(self.snapshots[-1]).role if self.snapshots else None
        shown = configured or scraped or self._voted() or self._shown_by_load()
        return shown or (self._named() if self.is_vllm else None)

    def _voted(self) -> LogRole | None:
        ranked = self.votes.most_common(2)
        if not ranked or (len(ranked) > 1 and ranked[0][1] == ranked[1][1]):
            return None
        return ranked[0][0]

    def _shown_by_load(self) -> LogRole | None:
        busy = [s for series in self.loads.values() for s in series.samples if s.prompt_rate or s.generation_rate]
        if not busy:
            return None
        prompt = median(sample.prompt_rate for sample in busy)
        generation = median(sample.generation_rate for sample in busy)
        if prompt and generation <= prompt * _PREFILL_RATIO:
            return "prefill"
        return "decode" if generation > prompt else None

    def _named(self) -> LogRole | None:
        found = {role for pattern, role in _NAMES if pattern.search(self.name)}
        return found.pop() if len(found) == 1 else None


def notes_of(engines: Iterable[EngineLog], *kinds: str) -> list[Evidence]:
    """Return the lines of these kinds that name no request."""
    return [evidence for engine in engines for kind in kinds for evidence in engine.notes.get(kind, ())]
