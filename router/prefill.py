"""The prefill call: with the handle; if that fails once without; and on another engine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kvdiag.router.answers import PrefillAnswer, parse_prefill
from kvdiag.router.calls import Call
from kvdiag.router.faults import EngineError, EngineLostError, EngineUnreachableError, NoEngineError, RefusedError
from kvdiag.router.ledger import prefill_params
from kvdiag.router.retries import ATTEMPTS, count_retry, pick
from kvdiag.router.state import Prefilled
from kvdiag.router.verdict import explain, failed_read

if TYPE_CHECKING:
    from kvdiag.router.placement import Engine
    from kvdiag.router.state import Services, TurnState
    from kvdiag.router.stores import Entry


async def prefill(services: Services, state: TurnState) -> Prefilled:
    """Return what decode starts from.

    Raises:
        RefusedError: the engine found fault with the request.
        EngineError: no engine could serve it.

    """
    started = time.perf_counter()
    avoid: set[str] = set()
    for attempt in range(ATTEMPTS):
        engine = pick(services.prefills, avoid)
        entry = state.claim.entry if state.claim.hit and state.failed_read is None else None
        try:
            prefilled = await prefill_on(engine, services, state, entry)
        except EngineError as error:
            count_retry(services, state, "prefill", attempt, error)
            if entry is None or isinstance(error, EngineUnreachableError):
                avoid.add(engine.name)
            else:  # suspect the handle first
                state.failed_read = failed_read(expired=services.ledger.expired(state.claim))
        else:
            state.prefill_s = time.perf_counter() - started
            return prefilled
    raise NoEngineError


async def prefill_on(engine: Engine, services: Services, state: TurnState, entry: Entry | None) -> Prefilled:
    """Call one engine, with the entry's handle if there is one."""
    deadlines = services.settings.deadlines
    seconds = deadlines.prefill_s if entry is None else min(deadlines.reuse_s, deadlines.prefill_s)
    body = state.body.for_prefill(prefill_params(entry, state.context()))
    span = state.trace.leg("prefill", engine.name)
    with Call(engine, state.request.target, span, forgiving=entry is not None) as call:
        try:
            exchange = await call.open(state.headers, body, seconds)
        finally:
            state.handle_read = state.handle_read or (entry is not None and call.sent)
        data = await exchange.body(seconds)
        if exchange.status >= 500:
            raise EngineLostError(f"status {exchange.status}")
    if exchange.status != 200:
        raise RefusedError(exchange.status, exchange.headers, data)
    answer = parse_prefill(data) or PrefillAnswer()
    state.prefill = engine.name
    state.outcome = explain(state.claim, answer, engine, state.failed_read)
    return Prefilled(answer.kv_transfer_params, engine.name, time.perf_counter())
