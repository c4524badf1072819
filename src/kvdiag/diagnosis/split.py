"""Where a turn's time to first token went: each part with what tells it, or with what would.

Only the difference of two stamps of the same log is a time; and only where that log writes fractions of a second, or
where seconds do not matter any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, get_args

from kvdiag.diagnosis.report import LatencySplit
from kvdiag.events import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvdiag.causes import Direction
    from kvdiag.diagnosis.turns import Mark, Turn
    from kvdiag.events import KvEvent

COARSE_S: Final = 2.0
"""Where stamps are whole seconds: less than this may be rounding."""
QUEUED_S: Final = 2.0
"""Whoever waits so long to be admitted is late for that alone, however long the others wait."""
TELLING_BYTES: Final = 32e6
"""What is smaller and takes long has waited for something else, for a CPU most likely; no transport is so slow."""
_TELLING_TOKENS: Final = 2048
NEEDS: Final = {
    "router": "router_s in kvdiag's turn log, or a router that times its own work (vLLM production-stack)",
    "prefill_queue": "queue_s in kvdiag's turn or event log; or prefill's DEBUG log with --enable-log-requests and stamps in "
    "milliseconds (JSON log format)",
    "read": "kvdiag's connector on prefill; or prefill's DEBUG log with stamps in milliseconds (JSON log format)",
    "prefill_compute": "the time of the prefill call by the router's log, and the parts prefill_queue and read",
    "handoff": "kvdiag's connector on decode (event log); or decode's DEBUG log with stamps in milliseconds (JSON log format)",
    "decode_first_token": "kvdiag's turn log of a streamed turn, and the parts router and handoff",
}
"""What would tell a part that no input tells, by the part."""


def split(turn: Turn) -> LatencySplit | None:
    """Return where the time to first token went, as far as logs tell; None where they tell nothing of it."""
    router, queue, read, handoff = router_s(turn), queue_s(turn), read_s(turn), handoff_s(turn)
    prefill, ttft = turn.prefill_s, turn.record.ttft_s if turn.record is not None else None
    found = LatencySplit(
        router=router,
        prefill_queue=queue,
        read=read,
        prefill_compute=_rest(prefill, queue, read),
        handoff=handoff,
        decode_first_token=_rest(ttft, prefill, router, handoff),
    )
    if found.prefill_compute is None:
        found.prefill_unsplit = _rest(prefill, queue or 0.0, read or 0.0)
    if found.decode_first_token is None:
        found.decode_unsplit = _rest(ttft, prefill, router or 0.0, handoff or 0.0)
    told = (queue, handoff, router, prefill, ttft, read or None)
    return found if any(seconds is not None for seconds in told) else None


def needs(splits: Iterable[LatencySplit | None]) -> dict[str, str]:
    """Return what would tell the parts that some of these turns leave open."""
    known = [found for found in splits if found is not None]
    return {part: need for part, need in NEEDS.items() if any(getattr(found, part) is None for found in known)}


def _rest(whole: float | None, *parts: float | None) -> float | None:
    """Return what known parts leave of a whole; None where one of them is not known."""
    if whole is None or None in parts:
        return None
    return max(whole - sum(part or 0.0 for part in parts), 0.0)


def router_s(turn: Turn) -> float | None:
    """Return what the router itself took, by its own clock; seconds."""
    if turn.record is not None:
        return turn.record.router_s
    if turn.router_s is not None:
        return turn.router_s
    done = turn.marks.get("prefill_done")
    if not done or done[0].stamp is None or turn.first_seen is None or turn.prefill_s is None:
        return None
    extra = done[0].stamp - turn.first_seen - turn.prefill_s
    return extra if extra >= COARSE_S else None


def queue_s(turn: Turn, role: Role = "prefill") -> float | None:
    """Return how long the request waited in an engine of this role until it was admitted; seconds."""
    if role == "prefill" and turn.record is not None and turn.record.queue_s is not None:
        return turn.record.queue_s
    for event in events(turn, "event_match"):
        if event.role == role and event.queue_s is not None:
            return event.queue_s
    return _between(turn, (f"received_{role}", "added"), ("read_started",), role)


def longest_queue(turn: Turn) -> tuple[Role, float]:
    """Return where the turn queued longest, and for how many seconds; 0 where no log tells."""
    roles: tuple[Role, ...] = get_args(Role)
    waited, role = max((queue_s(turn, role) or 0.0, role) for role in roles)
    return role, waited


def read_s(turn: Turn) -> float | None:
    """Return how long the read back from decode took; 0 where the turn is known to have read nothing; seconds."""
    event = transfer_event(turn, "decode_to_prefill")
    if event is not None:
        return _felt_s(event)
    record = turn.record
    if record is not None and (record.read_s is not None or record.remote_tokens == 0):
        return record.read_s or 0.0
    if _has_no_read(turn):
        return 0.0
    return _between(turn, ("read_started",), ("read_finished",), "prefill")


def _has_no_read(turn: Turn) -> bool:
    return turn.handle is None and turn.lookup is not None and turn.lookup.result != "hit"


def handoff_s(turn: Turn) -> float | None:
    """Return how long decode's read from prefill took; seconds."""
    event = transfer_event(turn, "prefill_to_decode")
    if event is not None:
        return _felt_s(event)
    return _between(turn, ("read_started",), ("read_finished",), "decode")


def _felt_s(event: KvEvent) -> float | None:
    """Return what the request waited for a transfer: set-up and polling included, where that was measured."""
    return event.wait_s if event.wait_s is not None else event.seconds


def transfer_event(turn: Turn, direction: Direction) -> KvEvent | None:
    """Return the connector's event on a transfer of this turn."""
    return next((event for event in events(turn, "event_transfer") if event.direction == direction), None)


def events(turn: Turn, kind: str) -> Sequence[KvEvent]:
    """Return the connectors' events of this kind on a turn, as `event_match`."""
    return [mark.data["event"] for mark in turn.marks.get(kind, ())]


def _between(turn: Turn, first: tuple[str, ...], last: tuple[str, ...], role: str) -> float | None:
    """Return the time from the first to the last of these facts in one log of a role, where its stamps can tell."""
    starts = [mark for kind in first for mark in turn.marks.get(kind, ()) if mark.engine.role == role]
    ends = [mark for kind in last for mark in turn.marks.get(kind, ()) if mark.engine.role == role]
    spans = (elapsed(start, end) for start in starts for end in ends if start.engine is end.engine)
    return max((span for span in spans if span is not None), default=None)


def elapsed(start: Mark, end: Mark) -> float | None:
    """Return the seconds from one line to another of the same log; None where its stamps are too coarse to tell."""
    if start.stamp is None or end.stamp is None or end.stamp < start.stamp:
        return None
    seconds = end.stamp - start.stamp
    return seconds if start.engine.fine or seconds >= COARSE_S else None


def is_telling(turn: Turn, direction: Direction) -> bool:
    """Tell whether a transfer of this turn was large enough that its time tells of the transport."""
    event = transfer_event(turn, direction)
    if event is not None and event.bytes is not None:
        return event.bytes >= TELLING_BYTES
    return turn.record is not None and (turn.record.remote_tokens or 0) >= _TELLING_TOKENS


def main_part(turn: Turn) -> tuple[str, str | None] | None:
    """Return the cause that a slow turn's largest part points to, None where no part is more than half of it."""
    parts, whole = split(turn), turn.first_token_s
    if parts is None or not whole:
        return None
    taken = {part: getattr(parts, part) or 0.0 for part in _CAUSES}
    largest = max(taken, key=taken.__getitem__)
    return _CAUSES[largest] if taken[largest] * 2 > whole else None


_CAUSES: Final[dict[str, tuple[str, str | None]]] = {
    "router": ("router_overhead", None),
    "prefill_queue": ("queueing", "prefill"),
    "read": ("slow_transfer", "decode_to_prefill"),
    "prefill_compute": ("compute_bound", None),
    "handoff": ("slow_transfer", "prefill_to_decode"),
}
