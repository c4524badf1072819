"""What the uneventful turns of a block add up to: in a long log nearly every turn went well, and none needs a row.

A reader that was asked for no rows counts such turns where it finds them instead of handing each one on. Their times
go into the baseline all the same. Whatever was slow, failed, or could not reuse is handed on.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kvdiag.causes import OUTCOMES
from kvdiag.diagnosis.ids import external_id
from kvdiag.diagnosis.split import QUEUED_S
from kvdiag.events import PROBE, KvEvent, TurnRecord

if TYPE_CHECKING:
    from kvdiag.diagnosis.options import LogRole

SENT: Final = "handle_sent"
"""How a turn ended of which a router tells no more than that it sent the handle."""
REUSED: Final = frozenset({"remote_hit", "local_hit", "below_threshold", SENT})
SHOWN: Final = frozenset({"below_threshold", "local_hit"})
"""Outcomes that explain why a turn was not read back; a report has a line for them, the others need none."""
_ERROR: Final = 400
# Reads and set-ups that are slow from here on are judged one by one.
_FELT_TRANSFER_S: Final = 0.4
_QUIET: Final = frozenset({"match", "transfer", "retain", "release"})

Group = tuple[bool, int]
"""Turns that compare: whether they reused, and the class of their prompt's length."""


def length_class(tokens: int | None) -> int:
    """Return a prompt's length class: doublings of tokens, 0 where unknown."""
    return (tokens or 0).bit_length()


@dataclass(slots=True)
class Digest:
    """Uneventful turns, counted. `felt_s`: from this time to first token on a turn is an event; None makes each one."""

    felt_s: float | None
    kinds: Counter[str] = field(default_factory=Counter)
    """Lines counted, by the kind of their fact."""
    votes: Counter[LogRole] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    """Records by what they tell of."""
    ended: Counter[str] = field(default_factory=Counter)
    """Turns by their outcome, as a router tells it."""
    first: int = 0
    matched: int = 0
    """Requests that prefill matched, as its connector tells it: all that counts turns where no router does."""
    times: dict[Group, array[float]] = field(default_factory=dict)
    per_token: array[float] = field(default_factory=lambda: array("d"))
    """Seconds of prefill for each token computed."""
    ids: dict[str, str] = field(default_factory=dict)
    """Their external ids, each with the outcome: other logs may tell of these turns as well."""
    _hit: str = ""
    """The last request that matched: a decline right after it is about a part that it could not reuse."""
    _shown: set[str] = field(default_factory=set)
    begin: str | None = None
    end: str | None = None
    """When the first and the last of them ended."""

    def absorb(self, record: TurnRecord | KvEvent) -> bool:
        """Count a record of our own logs, unless something happened to it; tell whether it was counted."""
        if self.felt_s is None:
            return False
        return self._turn(record, self.felt_s) if isinstance(record, TurnRecord) else self._event(record)

    def _turn(self, record: TurnRecord, felt_s: float) -> bool:
        taken = record.ttft_s if record.ttft_s is not None else record.prefill_s
        if record.cause not in OUTCOMES or record.status >= _ERROR or (taken or 0.0) >= felt_s:
            return False
        if record.request_id.startswith(PROBE):
            return False
        if record.cause in SHOWN - self._shown:
            self._shown.add(record.cause)  # its line is evidence
            return False
        self.kinds["record"] += 1
        self.votes["router"] += 1
        self.counts["turn_records"] += 1
        name = external_id(record.request_id, suffixed=False)
        self.add_turn(name, record.cause, length_class(record.prompt_tokens), taken, first=record.turn == 1)
        if record.prefill_s and record.computed_tokens:
            self.per_token.append(record.prefill_s / record.computed_tokens)
        self.begin, self.end = self.begin or record.ts, record.ts
        return True

    def add_turn(self, name: str, outcome: str, length: int, taken: float | None, *, first: bool) -> None:
        """Count one turn and its time to first token."""
        self.ids[name] = outcome
        self.ended[outcome] += 1
        self.first += first
        if taken is not None:
            self.times.setdefault((outcome in REUSED, length), array("d")).append(taken)

    def _event(self, event: KvEvent) -> bool:
        lost_in_part = event.kind == "decline" and event.request_id == self._hit
        well = event.cause is None or event.cause in OUTCOMES
        quiet = event.kind in _QUIET and well and not _felt(event) and not is_lapse(event)
        if not quiet and not lost_in_part:
            return False
        if event.kind == "match":
            self._hit = event.request_id if event.cause in REUSED else ""
        self.kinds["record"] += 1
        self.votes[event.role] += 1
        self.counts[f"event_{event.kind}"] += 1
        self.matched += event.kind == "match" and event.role == "prefill"
        self.begin, self.end = self.begin or event.ts, event.ts
        return True


def is_lapse(event: KvEvent) -> bool:
    """Tell whether prefill's lease ended before decode had read."""
    return (event.kind, event.role, event.release) == ("release", "prefill", "expired")


def _felt(event: KvEvent) -> bool:
    if event.kind == "match":
        return (event.queue_s or 0.0) >= QUEUED_S
    if event.kind != "transfer":
        return False
    taken = (event.seconds or 0.0) + (event.post_seconds or 0.0)
    return max(taken, event.wait_s or 0.0, event.handshake_s or 0.0) >= _FELT_TRANSFER_S
