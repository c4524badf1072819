"""Requests that are not turns: model lists, tokenizers and what else engines answer, unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvdiag.router.calls import Call
from kvdiag.router.faults import EngineError, NoEngineError

if TYPE_CHECKING:
    from kvdiag.router.connection import Connection
    from kvdiag.router.intake import Request
    from kvdiag.router.placement import Engine
    from kvdiag.router.state import Services

OPEN_POSTS: Final = frozenset({"/tokenize", "/detokenize", "/v1/messages/count_tokens"})
"""POSTs that change nothing; an engine's administration is not reached through the router."""
OPEN_GETS: Final = frozenset({"/v1/models", "/version", "/tokenizer_info", "/ping"})
HEADERS: Final = (b"authorization", b"x-api-key", b"api-key", b"accept", b"content-type", b"x-request-id")


def allowed(method: bytes, path: str) -> bool:
    """Whether a request may be passed through."""
    if method == b"GET":
        return path in OPEN_GETS or path.startswith(("/v1/models/", "/v1/responses/"))
    is_cancel = path.startswith("/v1/responses/") and path.endswith("/cancel")
    return method == b"POST" and (path in OPEN_POSTS or is_cancel)


async def pass_through(services: Services, request: Request, connection: Connection) -> None:
    """Ask decode engines in turn until one knows the answer: a stored response is on one of them only.

    Raises:
        EngineError: none answered.

    """
    error: EngineError = NoEngineError()
    candidates = [engine for engine in services.decodes.engines if engine.ready]
    for engine in sorted(candidates, key=lambda candidate: candidate.load):
        last = engine is candidates[-1] or not request.path.startswith("/v1/responses/")
        try:
            if await _ask(engine, services, request, connection, keep_looking=not last):
                return
        except EngineError as failure:
            error = failure
    raise error


async def _ask(
    engine: Engine, services: Services, request: Request, connection: Connection, *, keep_looking: bool
) -> bool:
    seconds = services.settings.deadlines.first_byte_s
    headers = b"".join([b"%b: %b\r\n" % (n, request.headers[n]) for n in HEADERS if n in request.headers])
    with Call(engine, request.target) as call:
        body = request.body if request.method == b"POST" else None
        exchange = await call.open(headers, body, seconds, request.method)
        data = await exchange.body(seconds)
    if exchange.status == 404 and keep_looking:
        return False
    connection.respond(exchange.status, data, exchange.content_type or b"application/json")
    return True
