"""What expiries in whole logs add to those of single turns: counters without lines, lines without a role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvdiag.diagnosis.engines import notes_of
from kvdiag.diagnosis.findings import Tally, turns_of
from kvdiag.diagnosis.judge import EFFECTS, was_given_up
from kvdiag.diagnosis.text import neutralise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvdiag.diagnosis.casebook import Casebook
    from kvdiag.diagnosis.engines import EngineLog
    from kvdiag.diagnosis.summary import Tallies
    from kvdiag.diagnosis.turns import Turn

_MAX_NAME: Final = 120
_ENDS_HANDOFF: Final = (*EFFECTS, "engine_dead")


def counted_expiries(book: Casebook, tallies: Tallies) -> list[Tally]:
    """Expiry counters beyond the lines that name requests: which of the two causes cannot be told.

    On decode the counter rises whenever a conversation simply ends. Errors that prefill answered with in the same
    intervals tell that it was a read: a lease that lapses fails nothing there.
    """
    if turns_of(tallies, "expired_remote_read", "expired_handoff", "suspect_kv"):
        return []
    engines = [engine for engine in book.with_role("prefill") if _unnamed(engine) > 0]
    count = sum(map(_unnamed, engines)) - sum(map(_left_unread, book.turns.values()))
    if count <= 0:
        return []
    errors = min(sum(engine.counts["errors_at_expiry"] for engine in engines), count)
    evidence = notes_of(engines, "counted_expired")
    if errors * 2 > sum(engine.counts["http_5xx"] for engine in engines):
        tally = Tally.of("expired_remote_read", None, "likely", count, evidence)
        tally.failed = errors
        return [tally]
    reads = any(engine.counts["transfers_succeeded"] or engine.bidirectional for engine in engines)
    return [Tally.of("expired_remote_read" if reads else "expired_handoff", None, "possible", count, evidence)]


def _unnamed(engine: EngineLog) -> int:
    """Return the expiries that an engine counted and named no request of: its lines are not there."""
    return engine.counts["kv_expired"] - engine.counts["released"] - engine.counts["declined"]


def _left_unread(turn: Turn) -> bool:
    """Tell whether decode is known not to have read a turn whose lease no line tells the end of: it lapsed."""
    if turn.seen("released", "declined"):
        return False
    kinds = (*_ENDS_HANDOFF, *(failure.type for failure in turn.failures))
    return any(mark.engine.role == "decode" for kind in kinds for mark in turn.marks.get(kind, ()))


def counted_late_notifications(book: Casebook, tallies: Tallies) -> list[Tally]:
    """Late reads that an engine counted and named no request of."""
    engines = [engine for engine in book.engines if engine.counts["late_notifications"]]
    if not engines or turns_of(tallies, "suspect_kv"):
        return []
    excused = sum(was_given_up(turn, book) or _is_probe_read_late(turn) for turn in book.turns.values())
    count = sum(engine.counts["late_notifications"] for engine in engines) - excused
    if count <= 0:
        return []
    evidence = notes_of(engines, "counted_late_notifications")
    return [Tally.of("suspect_kv", "read_after_release", "likely", count, evidence)]


def _is_probe_read_late(turn: Turn) -> bool:
    return turn.is_probe and turn.seen("read_after_release")


def unplaced(book: Casebook) -> list[str]:
    """Return the logs with expiries that may be decode's, which are normal, or prefill's, which are not: nobody can tell."""
    return sorted({neutralise(engine.name, _MAX_NAME) for engine in _unplaced(book)})


def _unplaced(book: Casebook) -> Iterator[EngineLog]:
    for engine in book.engines:
        if engine.role is None and engine.counts["kv_expired"]:
            yield engine
    for turn in book.turns.values():
        # Whose handle a router got, or whose end it tells, was read: its blocks are held on decode.
        if turn.blocks is None and turn.record is None and turn.counted is None:
            yield from (mark.engine for mark in turn.marks.get("released", ()) if mark.engine.role is None)
