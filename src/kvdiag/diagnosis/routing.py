"""Facts of other projects' routers in the casebook: which engines a turn was sent to, how long that took, what failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvdiag.diagnosis.ids import MAX_ID_CHARS, external_id
from kvdiag.diagnosis.split import elapsed
from kvdiag.diagnosis.text import neutralise
from kvdiag.diagnosis.turns import Mark

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdiag.diagnosis.options import LogRole
    from kvdiag.diagnosis.reduce import Seen
    from kvdiag.diagnosis.turns import Turn

_MAX_URL: Final = 120
_ROLES: Final[dict[str, LogRole]] = {"prefill": "prefill", "decode": "decode"}
MARKS: Final = frozenset(
    {"routed_prefill", "routed_decode", "prefill_timed", "arrived", "retried", "refused", "fell_back"}
)
"""What turns are marked with here: the way of a turn, nothing of its blocks."""


def _turn(seen: Seen) -> Turn | None:
    """Return the turn that the line names: in the message, or in a field of a JSON record."""
    seen.engine.votes["router"] += 1
    names = (seen.data.get(key) for key in ("id", "request_id", "x-request-id"))
    name = next((name for name in names if isinstance(name, str) and 0 < len(name) <= MAX_ID_CHARS), None)
    return None if name is None else seen.book.named(external_id(name, suffixed=False))


def _send(turn: Turn, role: LogRole, url: object) -> None:
    if isinstance(url, str):
        host = url.partition("://")[2] or url
        turn.endpoints.setdefault(role, neutralise(host.partition("/")[0], _MAX_URL))


def _mark(seen: Seen, turn: Turn, kind: str) -> Mark:
    mark = Mark(seen.evidence, seen.engine, seen.fact.stamp)
    turn.mark(kind, mark)
    turn.first_seen = seen.fact.stamp if turn.first_seen is None else turn.first_seen
    return mark


def routed(seen: Seen) -> None:
    """Note a call to prefill, then one to decode: what lies between them is the prefill call."""
    turn = _turn(seen)
    if turn is None:
        return
    role = _ROLES[seen.data["to"]]
    mark = _mark(seen, turn, f"routed_{role}")
    _send(turn, role, seen.data["url"])
    before = turn.marks.get("routed_prefill")
    if role == "decode" and before and before[0].engine is mark.engine and turn.prefill_s is None:
        turn.prefill_s = elapsed(before[0], mark)


def prefill_timed(seen: Seen) -> None:
    """Note how long the prefill call took by the router's clock."""
    turn = _turn(seen)
    if turn is not None:
        _mark(seen, turn, "prefill_timed")
        turn.prefill_s = float(seen.data["seconds"][:12])


def routed_in(seen: Seen) -> None:
    """Note an engine chosen, and the router's own time until then.

    With separate prefill the first of two such lines follows the prefill call, which its time includes.
    """
    turn = _turn(seen)
    if turn is None:
        return
    seconds = float(seen.data["seconds"][:12])
    if turn.seen("prefill_timed") and not turn.seen("routed_prefill"):
        _mark(seen, turn, "routed_prefill")
        _send(turn, "prefill", seen.data["url"])
        seconds -= turn.prefill_s or 0.0
    else:
        _mark(seen, turn, "routed_decode")
        _send(turn, "decode", seen.data["url"])
    turn.router_s = (turn.router_s or 0.0) + max(seconds, 0.0)
    session = seen.data.get("session")
    if session and session != "None":
        turn.conversation = turn.conversation or neutralise(session, _MAX_URL)


def arrived(seen: Seen) -> None:
    """Note a request's arrival at the scheduler."""
    turn = _turn(seen)
    if turn is not None:
        _mark(seen, turn, "arrived")


def scheduled(seen: Seen) -> None:
    """Note the engine that the scheduler chose, and its own time until then."""
    turn = _turn(seen)
    if turn is None:
        return
    mark = _mark(seen, turn, "routed_decode")
    _send(turn, "decode", seen.data.get("endpoint"))
    before = turn.marks.get("arrived")
    if before and before[0].engine is mark.engine:
        turn.router_s = elapsed(before[0], mark)


def retried(seen: Seen) -> None:
    """Note a prefill call that is repeated."""
    turn = _turn(seen)
    if turn is not None:
        _mark(seen, turn, "retried")
        _send(turn, "prefill", seen.data.get("target"))


def refused(seen: Seen) -> None:
    """Note an engine's error answer with its turn where the line names it."""
    turn = _turn(seen)
    if turn is not None:
        _mark(seen, turn, "refused")
    if not str(seen.data.get("status", "5")).startswith("4"):
        seen.note("upstream_5xx")


def fell_back(seen: Seen) -> None:
    """Note a turn that decode computed whole because its prefill call had failed."""
    turn = _turn(seen)
    if turn is not None:
        _mark(seen, turn, "fell_back")


HANDLERS: Final[dict[str, Callable[[Seen], None]]] = {
    "routed": routed,
    "prefill_timed": prefill_timed,
    "routed_in": routed_in,
    "arrived": arrived,
    "scheduled": scheduled,
    "retried": retried,
    "refused": refused,
    "fell_back": fell_back,
}
