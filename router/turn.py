"""One turn: look up, prefill, decode, keep the handle, report. Reuse never makes a turn fail."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from typing import TYPE_CHECKING, Final

from kvdiag.context import TurnOutcome
from kvdiag.router.answers import error_body, take_handle
from kvdiag.router.decode import decode
from kvdiag.router.faults import EngineError, EngineTimeoutError, NoEngineError, RefusedError
from kvdiag.router.ledger import Claim
from kvdiag.router.prefill import prefill
from kvdiag.router.records import CLIENT_GONE, record_of
from kvdiag.router.state import Prefilled, TurnState
from kvdiag.router.stores import Entry
from kvdiag.router.tracing import TurnTrace
from kvdiag.router.verdict import lookup_cause

if TYPE_CHECKING:
    from kvdiag.router.bodies import Body
    from kvdiag.router.connection import Connection
    from kvdiag.router.intake import Request
    from kvdiag.router.replies import Reply
    from kvdiag.router.state import Services

log = logging.getLogger("kvdiag.router")
FORWARDED: Final = (
    b"authorization",
    b"x-api-key",
    b"api-key",
    b"accept",
    b"x-session-id",
    b"anthropic-version",
    b"anthropic-beta",
    b"openai-organization",
    b"openai-project",
    b"tracestate",
    b"baggage",
)
"""Request headers that engines get to see; everything else stays here."""
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class Turn:
    """Serves one request."""

    def __init__(self, services: Services, request: Request, connection: Connection, body: Body) -> None:
        self._services = services
        trace = TurnTrace(services.tracer, request.headers, body.api.path)
        given = request.headers.get(b"x-request-id", b"")
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else f"{random.getrandbits(128):032x}"
        identity = services.identifier.identify(request.headers, body)
        self._state = TurnState(
            request=request,
            connection=connection,
            body=body,
            request_id=request_id,
            headers=_headers(request, request_id, trace, spans=services.tracer is not None),
            trace=trace,
            identity=identity,
            claim=Claim("unsupported", 1, identity.conversation),
        )

    async def run(self) -> None:
        """Serve the turn; the client is answered whatever happens."""
        state = self._state
        try:
            await self._serve()
        except RefusedError as refused:
            self._refuse(refused)
        except NoEngineError:
            self._fail(503, "no engine can take the request now; try again shortly")
        except EngineTimeoutError:
            self._fail(504, "the engine did not answer in time")
        except EngineError:
            self._fail(502, "the engine could not be reached or broke off")
        except asyncio.CancelledError:
            if not state.told_all:
                state.status = CLIENT_GONE
            raise
        finally:
            self._settle()
            self._report()

    def _refuse(self, refused: RefusedError) -> None:
        """Hand the engine's own answer on."""
        state = self._state
        state.status = refused.status
        wait = refused.headers.get(b"retry-after")
        headers = state.answer_headers if wait is None else (*state.answer_headers, (b"retry-after", wait))
        content_type = refused.headers.get(b"content-type", b"application/json")
        state.connection.respond(refused.status, take_handle(refused.body)[0], content_type, headers)

    def _fail(self, status: int, message: str) -> None:
        state = self._state
        state.status = status
        if not state.connection.head_sent:
            headers = (*state.answer_headers, (b"retry-after", b"1"))
            state.connection.respond(status, error_body(status, message), headers=headers)

    async def _serve(self) -> None:
        services, state = self._services, self._state
        single = state.body.one_prompt_one_answer
        supported = single and not state.body.decode_only
        if single:
            state.claim = await self._claim(supported=supported)
        services.metrics.lookup(state.claim.lookup)
        if not state.claim.hit:
            cause, detail = lookup_cause(state.claim.lookup)
            state.outcome = TurnOutcome(cause=cause, detail=detail)
        prefilled = await prefill(services, state) if supported else Prefilled()
        await decode(services, state, prefilled, self._commit)

    async def _claim(self, *, supported: bool) -> Claim:
        claim = await self._services.ledger.claim(self._state.identity)
        self._state.claimed = True
        if self._held_out(claim):
            self._state.arm = "holdout"
            if claim.hit:
                return claim.withheld("holdout")
        return claim if supported else claim.withheld("unsupported")

    def _held_out(self, claim: Claim) -> bool:
        share = self._services.settings.holdout
        return bool(share) and int(claim.conversation[:8], 16) < share * 2**32

    def _commit(self, handle: bytes | None, reply: Reply | None) -> asyncio.Future[None] | None:
        """Keep the turn's end for the next one."""
        state = self._state
        state.told_all = True
        if not state.claimed:
            return None
        state.claimed = False
        entry = Entry(
            turn=state.claim.turn,
            conversation=state.claim.conversation,
            prefill=state.prefill,
            decode=state.decode,
            prompt_tokens=state.outcome.prompt_tokens,
        )
        return self._services.ledger.commit(state.identity, reply, entry, handle)

    def _settle(self) -> None:
        """Give an unanswered turn's claim back."""
        state = self._state
        if state.claimed:
            state.claimed = False
            self._services.ledger.give_back(state.identity, state.claim, unread=not state.handle_read)

    def _report(self) -> None:
        """Tell what happened; telemetry that fails is counted and fails nobody else."""
        state, services = self._state, self._services
        try:
            record = record_of(state)
            services.report(record)
            services.metrics.turn(record, state.arm, handoff_s=state.handoff_s, exemplar=state.trace.exemplar)
            state.trace.end(record)
        except Exception:
            log.exception("a turn could not be recorded")
            services.metrics.dropped("queue")


def _headers(request: Request, request_id: str, trace: TurnTrace, *, spans: bool) -> bytes:
    """Return the header lines of both calls; with spans each call adds a traceparent of its own."""
    given = request.headers
    lines = [b"%b: %b\r\n" % (name, given[name]) for name in FORWARDED if name in given]
    if trace.traceparent is not None and not spans:
        lines.append(b"traceparent: %b\r\n" % trace.traceparent.encode())
    return b"content-type: application/json\r\nx-request-id: %b\r\n%b" % (request_id.encode(), b"".join(lines))
