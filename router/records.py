"""The turn log's record of a finished turn."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from kvdiag.events import TurnRecord

if TYPE_CHECKING:
    from kvdiag.router.state import TurnState

CLIENT_GONE: Final = 499
"""Status of a turn whose client went away; never sent."""
SLOW_CLIENT_S: Final = 1.0
"""Seconds of a full socket that nobody would notice."""


def record_of(state: TurnState) -> TurnRecord:
    """Return what the turn log, the metrics and the span say of the turn."""
    claim, outcome = state.claim, state.outcome
    cause, detail = _cause(state)
    return TurnRecord(
        ts=_now(),
        request_id=state.request_id,
        conversation=claim.conversation,
        turn=claim.turn,
        model=state.body.model,
        stream=state.body.stream,
        prefill=state.prefill,
        decode=state.decode,
        lookup=claim.lookup,
        handle_age_s=_micros(claim.age_s) if claim.hit else None,
        gap_s=_micros(claim.age_s),
        prompt_tokens=outcome.prompt_tokens,
        local_tokens=outcome.local_tokens,
        remote_tokens=outcome.remote_tokens,
        computed_tokens=_computed(state),
        lost_tokens=outcome.lost_tokens,
        router_s=_micros(_router_s(state)),
        queue_s=_micros(outcome.queue_s),
        read_s=_micros(outcome.wait_s),
        prefill_s=_micros(state.prefill_s),
        ttft_s=_micros(state.ttft_s),
        total_s=_micros(time.perf_counter() - state.request.received_at),
        retries=state.retries,
        status=state.status,
        cause=cause,
        detail=detail,
    )


def _now() -> str:
    """Return the time as `kvdiag.events.utc_now` does, the second's text made once a second."""
    now = time.time()
    return f"{_second(int(now))}.{int(now % 1 * 1000):03d}Z"


@lru_cache(maxsize=1)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _cause(state: TurnState) -> tuple[str, str | None]:
    if state.status == CLIENT_GONE:
        return "client", "aborted"
    if state.status >= 500:
        return "upstream_error", None
    if state.status >= 400:
        return "client", "refused"
    if _drained_slowly(state):
        return "client", "slow"
    return state.outcome.cause, state.outcome.detail


def _drained_slowly(state: TurnState) -> bool:
    """Return whether most of the turn after its first token was waiting for the client to read."""
    waited, answering = (
        state.connection.paused_s,
        time.perf_counter() - state.request.received_at - (state.ttft_s or 0.0),
    )
    return waited >= SLOW_CLIENT_S and waited > answering / 2


def _router_s(state: TurnState) -> float | None:
    """Return what the two calls leave of the time until the answer went out; None where none did."""
    if state.decode_s is None:
        return None
    until = state.ttft_s
    if until is None:
        until = time.perf_counter() - state.request.received_at
    return max(0.0, until - state.decode_s - (state.prefill_s or 0.0))


def _computed(state: TurnState) -> int | None:
    outcome = state.outcome
    if outcome.prompt_tokens is None or outcome.local_tokens is None:
        return None
    return max(0, outcome.prompt_tokens - outcome.local_tokens - (outcome.remote_tokens or 0))


def _micros(seconds: float | None) -> float | None:
    """Return seconds to the microsecond; `round(seconds, 6)` goes through the decimal digits and takes five times as long."""
    return None if seconds is None else int(seconds * 1e6) / 1e6
