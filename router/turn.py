"""One turn: look up, prefill, decode, keep the handle, report. Reuse never makes a turn fail."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from kvdiag.context import TurnContext, TurnOutcome
from kvdiag.events import TurnRecord, utc_now
from kvdiag.router.answers import PrefillAnswer, error_body, parse_prefill, take_handle
from kvdiag.router.calls import Call
from kvdiag.router.faults import (
    EngineError,
    EngineLostError,
    EngineTimeoutError,
    EngineUnreachableError,
    NoEngineError,
)
from kvdiag.router.ledger import Claim, decode_params, prefill_params
from kvdiag.router.relay import Relay
from kvdiag.router.stores import Entry
from kvdiag.router.tracing import TurnTrace
from kvdiag.router.verdict import explain

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdiag.events import Role
    from kvdiag.exporters.spans import Tracer
    from kvdiag.router.bodies import Body
    from kvdiag.router.connection import Connection
    from kvdiag.router.identity import Identifier, Identity
    from kvdiag.router.intake import Request
    from kvdiag.router.ledger import Ledger
    from kvdiag.router.metrics import Arm, Retry, RouterMetrics
    from kvdiag.router.placement import Engine, Pool
    from kvdiag.router.settings import Settings
    from kvdiag.router.upstream import Exchange

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
ATTEMPTS: Final = 3
"""Calls of one leg, the first included."""
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
CLIENT_GONE: Final = 499
"""Status of a turn whose client went away; never sent."""


@dataclass(frozen=True, slots=True)
class Services:
    """What all turns share."""

    settings: Settings
    prefills: Pool
    decodes: Pool
    ledger: Ledger
    identifier: Identifier
    metrics: RouterMetrics
    report: Callable[[TurnRecord], None]
    tracer: Tracer | None = None


@dataclass(slots=True)
class Prefilled:
    """What the decode call starts from."""

    params: dict[str, msgspec.Raw] | None = None
    engine: str | None = None
    at: float | None = None


class RefusedError(Exception):
    """An engine refused the request itself: the client gets the engine's answer."""

    def __init__(self, exchange: Exchange, body: bytes) -> None:
        super().__init__(exchange.status)
        self.status = exchange.status
        self.content_type = exchange.content_type
        self.headers = tuple((n, exchange.headers[n]) for n in (b"retry-after",) if n in exchange.headers)
        self.body = take_handle(body)[0]


@dataclass(slots=True)
class Progress:
    """What is known of a turn so far; what is still unknown when it ends stays None."""

    status: int = 0
    retries: int = 0
    prefill: str | None = None
    decode: str | None = None
    prefill_s: float | None = None
    handoff_s: float | None = None
    ttft_s: float | None = None
    outcome: TurnOutcome = field(default_factory=lambda: TurnOutcome(cause="unexplained"))


class Turn:
    """Serves one request."""

    def __init__(self, services: Services, request: Request, connection: Connection, body: Body) -> None:
        self._services = services
        self._request = request
        self._connection = connection
        self._body = body
        self._path = request.path
        self._trace = TurnTrace(services.tracer, request.headers, self._path)
        given = request.headers.get(b"x-request-id", b"")
        self.request_id = given.decode() if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        self._headers = self._forwarded()
        self._answer_headers = ((b"x-request-id", self.request_id.encode()),)
        self._identity: Identity = services.identifier.identify(request.headers, body)
        self._claim = Claim("unsupported", self._identity.answered + 1, self._identity.conversation)
        self._arm: Arm = "reuse"
        self._handle_sent = False
        self._dropped = False
        """Whether a prefill call with the handle failed, so that the turn went on without."""
        self._claimed = False
        self._committed = False
        self._progress = Progress()

    def _forwarded(self) -> bytes:
        headers = self._request.headers
        lines = [b"%b: %b\r\n" % (name, headers[name]) for name in FORWARDED if name in headers]
        if self._trace.traceparent is not None and self._services.tracer is None:
            lines.append(b"traceparent: %b\r\n" % self._trace.traceparent.encode())
        return b"content-type: application/json\r\nx-request-id: %b\r\n%b" % (
            self.request_id.encode(),
            b"".join(lines),
        )

    async def run(self) -> None:
        """Serve the turn; answers the client whatever happens."""
        progress = self._progress
        try:
            await self._serve()
        except RefusedError as refused:
            progress.status = refused.status
            headers = (*self._answer_headers, *refused.headers)
            self._connection.respond(refused.status, refused.body, refused.content_type, headers)
        except NoEngineError:
            self._fail(503, "no engine can take the request now; try again shortly")
        except EngineTimeoutError:
            self._fail(504, "the engine did not answer in time")
        except EngineError:
            self._fail(502, "the engine could not be reached or broke off")
        except asyncio.CancelledError:
            progress.status = CLIENT_GONE
            raise
        finally:
            self._settle()
            self._record()

    def _fail(self, status: int, message: str) -> None:
        self._progress.status = status
        if not self._connection.head_sent:
            headers = (*self._answer_headers, (b"retry-after", b"1"))
            self._connection.respond(status, error_body(status, message), headers=headers)

    async def _serve(self) -> None:
        if not self._body.one_prompt_one_answer or self._body.decode_only:
            self._services.metrics.lookup("unsupported")
            self._progress.outcome = TurnOutcome(cause="missing_metadata", detail="unsupported")
            await self._decode(Prefilled())
            return
        await self._look_up()
        await self._decode(await self._prefill())

    async def _look_up(self) -> None:
        claim = await self._services.ledger.claim(self._identity)
        self._claimed = True
        if self._held_out(claim):
            self._arm = "holdout"
            if claim.hit:
                claim = Claim("holdout", claim.turn, claim.conversation, claim.entry, claim.age_s)
        self._claim = claim
        self._services.metrics.lookup(claim.lookup)

    def _held_out(self, claim: Claim) -> bool:
        share = self._services.settings.holdout
        return bool(share) and claim.conversation is not None and int(claim.conversation[:8], 16) < share * 2**32

    # Prefill.

    async def _prefill(self) -> Prefilled:
        """Call prefill: with the handle, then once without, then another engine."""
        started = time.perf_counter()
        avoid: set[str] = set()
        entry = self._claim.entry if self._claim.hit else None
        for attempt in range(ATTEMPTS):
            engine = self._pick_prefill(avoid, attempt)
            try:
                prefilled = await self._prefill_on(engine, entry)
            except EngineUnreachableError as error:
                self._retry("prefill_unreachable", attempt, error)
                avoid.add(engine.name)
            except EngineTimeoutError as error:
                self._retry("prefill_timeout", attempt, error)
                entry, avoid = self._without(entry, engine, avoid)
            except EngineLostError as error:
                self._retry("prefill_error", attempt, error)
                entry, avoid = self._without(entry, engine, avoid)
            else:
                self._progress.prefill_s = round(time.perf_counter() - started, 6)
                return prefilled
        raise NoEngineError

    def _pick_prefill(self, avoid: set[str], attempt: int) -> Engine:
        try:
            return self._services.prefills.pick(avoid=avoid)
        except NoEngineError:
            if attempt and avoid:  # nobody else: the one that failed may still be the best there is
                return self._services.prefills.pick()
            raise

    def _without(self, entry: Entry | None, engine: Engine, avoid: set[str]) -> tuple[None, set[str]]:
        """Blame the handle first, the engine only if there was none."""
        if entry is None:
            return None, {*avoid, engine.name}
        self._dropped = True
        return None, avoid

    def _retry(self, reason: Retry, attempt: int, error: EngineError) -> None:
        role: Role = "prefill" if reason.startswith("prefill") else "decode"
        self._services.metrics.upstream_error(role)
        if attempt + 1 == ATTEMPTS:
            raise error
        self._services.metrics.retry(reason)
        self._progress.retries += 1

    async def _prefill_on(self, engine: Engine, entry: Entry | None) -> Prefilled:
        deadlines = self._services.settings.deadlines
        seconds = deadlines.prefill_s if entry is None else min(deadlines.reuse_s, deadlines.prefill_s)
        body = self._body.for_prefill(prefill_params(entry, self._context()))
        with Call(
            engine, self._request.target, self._trace.leg("prefill", engine.name), forgiving=entry is not None
        ) as call:
            exchange = await call.open(self._headers, body, seconds)
            self._handle_sent = self._handle_sent or entry is not None
            data = await exchange.body(seconds)
            if exchange.status >= 500:
                raise EngineLostError(f"status {exchange.status}")
        if exchange.status != 200:
            raise RefusedError(exchange, data)
        answer = parse_prefill(data) or PrefillAnswer()
        self._progress.prefill = engine.name
        self._progress.outcome = self._explained(answer, engine)
        return Prefilled(answer.kv_transfer_params, engine.name, time.perf_counter())

    def _explained(self, answer: PrefillAnswer, engine: Engine) -> TurnOutcome:
        outcome = explain(self._claim, answer, engine.name)
        if self._dropped:
            return msgspec.structs.replace(outcome, cause="upstream_error", detail=None)
        return outcome

    def _context(self) -> TurnContext:
        claim = self._claim
        with_handle = claim.hit and not self._dropped
        return TurnContext(
            conversation=claim.conversation,
            turn=claim.turn,
            lookup="consumed" if self._dropped else claim.lookup,
            traceparent=self._trace.traceparent,
            issued_at=claim.entry.ended_at if with_handle and claim.entry else None,
            age_s=claim.age_s if with_handle else None,
        )

    # Decode.

    async def _decode(self, prefilled: Prefilled) -> None:
        """Call decode; until the first byte another engine may take over, with a prefill of its own if need be."""
        avoid: set[str] = set()
        for attempt in range(ATTEMPTS):
            engine = self._pick_decode(avoid, attempt)
            avoid.add(engine.name)
            try:
                await self._decode_on(engine, prefilled)
            except EngineUnreachableError as error:
                self._again("decode_unreachable", attempt, error)
            except EngineTimeoutError as error:
                self._again("decode_timeout", attempt, error)
                prefilled = await self._anew(prefilled)
            except EngineLostError as error:
                self._again("decode_error", attempt, error)
                prefilled = await self._anew(prefilled)
            else:
                return

    def _pick_decode(self, avoid: set[str], attempt: int) -> Engine:
        entry = self._claim.entry
        prefer = entry.decode if entry is not None else None
        try:
            return self._services.decodes.pick(prefer=prefer, avoid=avoid)
        except NoEngineError:
            if attempt and avoid:
                return self._services.decodes.pick()
            raise

    def _again(self, reason: Retry, attempt: int, error: EngineError) -> None:
        if self._connection.head_sent:
            self._services.metrics.upstream_error("decode")
            raise error
        self._retry(reason, attempt, error)

    async def _anew(self, prefilled: Prefilled) -> Prefilled:
        """Prefill again: the engine that failed may have read, and so freed, prefill's blocks."""
        if prefilled.params is None:
            return prefilled
        outcome = self._progress.outcome
        engine = self._services.prefills.pick(prefer=prefilled.engine)
        again = await self._prefill_on(engine, None)
        self._progress.outcome = outcome
        return again

    async def _decode_on(self, engine: Engine, prefilled: Prefilled) -> None:
        deadlines = self._services.settings.deadlines
        params = None if prefilled.params is None else decode_params(prefilled.params, self._context())
        seconds = deadlines.first_byte_s if self._body.stream else deadlines.answer_s
        self._progress.decode = engine.name
        with Call(engine, self._request.target, self._trace.leg("decode", engine.name)) as call:
            exchange = await call.open(self._headers, self._body.for_decode(params), seconds)
            if exchange.status >= 500:
                raise EngineLostError(f"status {exchange.status}")
            if exchange.status != 200:
                raise RefusedError(exchange, await exchange.body(deadlines.first_byte_s))
            self._progress.status = exchange.status
            if exchange.content_type.startswith(b"text/event-stream"):
                await self._stream(exchange, prefilled)
            else:
                await self._whole(exchange, deadlines.answer_s)

    async def _stream(self, exchange: Exchange, prefilled: Prefilled) -> None:
        relay = Relay(
            self._connection,
            exchange,
            headers=self._answer_headers,
            final=self._body.api.final,
            commit=self._commit,
            expose=self._services.settings.expose_kv_params,
        )
        try:
            await relay.run(self._services.settings.deadlines.stall_s)
        finally:
            if relay.first_at is not None:
                self._progress.ttft_s = round(relay.first_at - self._request.received_at, 6)
                if prefilled.at is not None:
                    self._progress.handoff_s = relay.first_at - prefilled.at

    async def _whole(self, exchange: Exchange, seconds: float) -> None:
        body = await exchange.body(seconds)
        cleaned, handle = take_handle(body)
        kept = self._commit(handle)
        if kept is not None:
            await kept
        answer = body if self._services.settings.expose_kv_params else cleaned
        self._connection.respond(exchange.status, answer, exchange.content_type, self._answer_headers)

    # What stays behind.

    def _commit(self, handle: bytes | None) -> asyncio.Future[None] | None:
        """Keep the turn's end for the next one."""
        self._committed = True
        if not self._claimed:
            return None
        entry = Entry(
            turn=self._claim.turn,
            conversation=self._claim.conversation,
            prefill=self._progress.prefill,
            decode=self._progress.decode,
            prompt_tokens=self._progress.outcome.prompt_tokens,
        )
        return self._services.ledger.commit(self._identity.key, entry, handle)

    def _settle(self) -> None:
        """Give an unanswered turn's claim back."""
        if self._claimed and not self._committed:
            self._services.ledger.give_back(self._identity.key, self._claim, unread=not self._handle_sent)

    def _record(self) -> None:
        progress, claim, outcome = self._progress, self._claim, self._progress.outcome
        cause, detail = self._blame()
        prompt, local, remote = outcome.prompt_tokens, outcome.local_tokens, outcome.remote_tokens
        record = TurnRecord(
            ts=utc_now(),
            request_id=self.request_id,
            conversation=claim.conversation,
            turn=claim.turn,
            model=self._body.model,
            stream=self._body.stream,
            prefill=progress.prefill,
            decode=progress.decode,
            lookup=claim.lookup,
            handle_age_s=claim.age_s if claim.hit else None,
            gap_s=claim.age_s,
            prompt_tokens=prompt,
            local_tokens=local,
            remote_tokens=remote,
            computed_tokens=None if prompt is None or local is None else max(0, prompt - local - (remote or 0)),
            lost_tokens=outcome.lost_tokens,
            prefill_s=progress.prefill_s,
            ttft_s=progress.ttft_s,
            total_s=round(time.perf_counter() - self._request.received_at, 6),
            retries=progress.retries,
            status=progress.status,
            cause=cause,
            detail=detail,
        )
        self._services.report(record)
        self._services.metrics.turn(record, self._arm, handoff_s=progress.handoff_s, exemplar=self._trace.exemplar)
        self._trace.end(record)

    def _blame(self) -> tuple[str, str | None]:
        if self._progress.status == CLIENT_GONE:
            return "client", "aborted"
        if self._progress.status >= 500:
            return "upstream_error", None
        return self._progress.outcome.cause, self._progress.outcome.detail
