"""The decode call and its answer; until the first byte another engine may take over."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kvdiag.router.answers import take_handle
from kvdiag.router.calls import Call
from kvdiag.router.faults import EngineError, EngineLostError, EngineUnreachableError, RefusedError
from kvdiag.router.ledger import decode_params
from kvdiag.router.prefill import prefill_on
from kvdiag.router.relay import Relay
from kvdiag.router.replies import Reply
from kvdiag.router.retries import ATTEMPTS, count_retry, pick

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from kvdiag.router.exchange import Exchange
    from kvdiag.router.placement import Engine
    from kvdiag.router.state import Prefilled, Services, TurnState

    Commit = Callable[[bytes | None, Reply | None], asyncio.Future[None] | None]


async def decode(services: Services, state: TurnState, prefilled: Prefilled, commit: Commit) -> None:
    """Serve the answer.

    Raises:
        RefusedError: the engine found fault with the request.
        EngineError: no engine could serve it, or the answer broke off after its first byte.

    """
    state.decode_called_at = time.perf_counter()
    avoid: set[str] = set()
    prefer = state.claim.entry.decode if state.claim.entry is not None else None
    for attempt in range(ATTEMPTS):
        engine = pick(services.decodes, avoid, prefer)
        avoid.add(engine.name)
        try:
            await _decode_on(engine, services, state, prefilled, commit)
        except EngineError as error:
            count_retry(services, state, "decode", attempt, error)
            if not isinstance(error, EngineUnreachableError):
                prefilled = await _anew(services, state, prefilled)
        else:
            return


async def _anew(services: Services, state: TurnState, prefilled: Prefilled) -> Prefilled:
    """Prefill again: the engine that failed may have read, and so freed, prefill's blocks."""
    if prefilled.params is None:
        return prefilled
    outcome = state.outcome
    again = await prefill_on(services.prefills.pick(prefer=prefilled.engine), services, state, None)
    state.outcome = outcome
    return again


async def _decode_on(
    engine: Engine, services: Services, state: TurnState, prefilled: Prefilled, commit: Commit
) -> None:
    deadlines = services.settings.deadlines
    params = None if prefilled.params is None else decode_params(prefilled.params, state.context())
    state.decode = engine.name
    with Call(engine, state.request.target, state.trace.leg("decode", engine.name)) as call:
        seconds = deadlines.first_byte_s if state.body.stream else deadlines.answer_s
        exchange = await call.open(state.headers, state.body.for_decode(params), seconds)
        if exchange.status >= 500:
            raise EngineLostError(f"status {exchange.status}")
        if exchange.status != 200:
            raise RefusedError(exchange.status, exchange.headers, await exchange.body(deadlines.first_byte_s))
        state.status = exchange.status
        reply = Reply() if state.identity.reads_replies else None
        if exchange.content_type.startswith(b"text/event-stream"):
            await _stream(exchange, services, state, prefilled, lambda handle: commit(handle, reply), reply)
        else:
            await _whole(exchange, services, state, commit, reply)


async def _stream(
    exchange: Exchange,
    services: Services,
    state: TurnState,
    prefilled: Prefilled,
    keep: Callable[[bytes | None], asyncio.Future[None] | None],
    reply: Reply | None,
) -> None:
    relay = Relay(
        state.connection,
        exchange,
        headers=state.answer_headers,
        api=state.body.api,
        commit=keep,
        expose=services.settings.expose_kv_params,
        reply=reply,
    )
    try:
        await relay.run(services.settings.deadlines.stall_s)
    finally:
        if relay.first_at is not None:
            state.ttft_s = relay.first_at - state.request.received_at
            state.answered(relay.first_at)
            if prefilled.at is not None:
                state.handoff_s = relay.first_at - prefilled.at


async def _whole(exchange: Exchange, services: Services, state: TurnState, commit: Commit, reply: Reply | None) -> None:
    body = await exchange.body(services.settings.deadlines.answer_s)
    state.answered(time.perf_counter())
    cleaned, handle = take_handle(body)
    if reply is not None:
        reply.read_answer(body)
    kept = commit(handle, reply)
    if kept is not None:
        await kept
    answer = body if services.settings.expose_kv_params else cleaned
    state.connection.respond(exchange.status, answer, exchange.content_type, state.answer_headers)
