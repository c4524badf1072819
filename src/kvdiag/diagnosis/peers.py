"""Facts about peers in the casebook: failed transfers and handshakes, why they failed, who was replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvdiag.diagnosis import parameters
from kvdiag.diagnosis.engines import MAX_ERRORS, Failure
from kvdiag.diagnosis.ids import spellings

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdiag.diagnosis.reduce import Seen

_MAX_TYPES: Final = 64


def _nixl_failure(seen: Seen) -> None:
    context = seen.data.get("context") or ""
    handle = parameters.pick(context, "remote_request_id")
    # What reads no block is no turn: vLLM has the peer's blocks freed for a request that it did not take.
    freeing = parameters.pick(context, "num_local_blocks") == "0"
    request = handle if freeing else seen.data.get("id") or parameters.pick(context, "request_id")
    peer = seen.data.get("peer") or parameters.pick(context, "remote_engine_id")
    failure = Failure(seen.data["type"], seen.evidence, peer)
    seen.engine.last_failure[seen.fact.pid] = failure
    if len(seen.engine.last_failure) > _MAX_TYPES:
        seen.engine.last_failure.pop(next(iter(seen.engine.last_failure)))
    if request is None:
        kept = seen.engine.failures.setdefault(failure.type, [])
        if len(kept) < MAX_ERRORS and len(seen.engine.failures) < _MAX_TYPES:
            kept.append(failure)
        return
    turn = seen.mark(failure.type, seen.request(request))
    if len(turn.failures) < _MAX_TYPES:
        turn.failures.append(failure)
    if handle and turn.id not in spellings(handle):
        seen.engine.votes["prefill"] += 1
        seen.wants(handle, turn)


def _reason(reason: str) -> Callable[[Seen], None]:
    def give(seen: Seen) -> None:
        failure = seen.engine.last_failure.get(seen.fact.pid) or next(reversed(seen.engine.last_failure.values()), None)
        if failure is None:
            seen.note(reason)
            return
        failure.reason = (
            _mismatch(seen) if reason == "restarted" else seen.data.get("status") or failure.reason or reason
        )
        if failure.peer and len(seen.engine.peer_reasons) < MAX_ERRORS:
            seen.engine.peer_reasons.setdefault(failure.peer, failure.reason)

    return give


def _unsupported(seen: Seen) -> None:
    """Take a check that did not hold for an incompatible peer, where it was the handshake that checked."""
    failure = seen.engine.last_failure.get(seen.fact.pid)
    if failure is not None and "handshake" in failure.type:
        _reason("incompatible")(seen)


def _mismatch(seen: Seen) -> str:
    """Judge a wrong peer: one that answers with our own engine id shows that the side channel address is wrong."""
    return "unreachable" if seen.data["received"] in seen.engine.engine_ids else "restarted"


def _engine_replaced(seen: Seen) -> None:
    if len(seen.engine.replaced) < MAX_ERRORS:
        seen.engine.replaced.setdefault(seen.data.get("old") or seen.data["peer"], seen.evidence)


def _metadata_lost(seen: Seen) -> None:
    if len(seen.engine.invalidated) < MAX_ERRORS:
        seen.engine.invalidated.add(seen.data["peer"])


def _state_released(seen: Seen) -> None:
    """Take a peer whose state was released for one that was replaced, unless the state itself was known to be void."""
    if seen.data["peer"] not in seen.engine.invalidated:
        _engine_replaced(seen)


HANDLERS: Final[dict[str, Callable[[Seen], None]]] = {
    "nixl_failure": _nixl_failure,
    "engine_id_mismatch": _reason("restarted"),
    "incompatible": _reason("incompatible"),
    "unsupported": _unsupported,
    "unreachable": _reason("unreachable"),
    "status_error": _reason("status"),
    "engine_replaced": _engine_replaced,
    "metadata_lost": _metadata_lost,
    "state_released": _state_released,
}
