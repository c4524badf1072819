"""W3C trace context through the router, and spans where an endpoint is set."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kvdiag.exporters import tracing as names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvdiag.events import Role, TurnRecord
    from kvdiag.exporters.spans import Span, Tracer

_OPERATIONS: Final = {"/v1/completions": "text_completion"}
"""What GenAI calls a request by its path, where it is no chat."""
_TRACEPARENT: Final = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class TurnTrace:
    """The spans of one turn: SERVER for the turn, CLIENT for each leg. Without a tracer it hands the context on."""

    def __init__(self, tracer: Tracer | None, headers: Mapping[bytes, bytes], path: str) -> None:
        self._operation = _OPERATIONS.get(path, "chat")
        incoming = headers.get(b"traceparent", b"")
        self._incoming = incoming.decode() if _TRACEPARENT.fullmatch(incoming) else None
        self._span = tracer.start(f"POST {path}", traceparent=self._incoming) if tracer is not None else None

    @property
    def traceparent(self) -> str | None:
        """What the turn context carries to the connectors."""
        return self._span.traceparent if self._span is not None else self._incoming

    @property
    def exemplar(self) -> dict[str, str] | None:
        """Labels that link a measurement to this trace."""
        return self._span.exemplar if self._span is not None else None

    def leg(self, role: Role, engine: str) -> Span | None:
        """Start the span of one call to an engine."""
        if self._span is None:
            return None
        return self._span.child(f"kvdiag.{role}", attributes={"server.address": engine})

    def end(self, record: TurnRecord) -> None:
        """Finish the turn's span with what the turn log says."""
        if self._span is None:
            return
        self._span.set(
            {
                names.OPERATION: self._operation,
                names.PROVIDER: "vllm",
                names.REQUEST_MODEL: record.model,
                names.CONVERSATION: record.conversation,
                names.INPUT_TOKENS: record.prompt_tokens,
                names.CACHE_READ_TOKENS: _reused(record),
                names.TURN: record.turn,
                names.CAUSE: record.cause,
                names.DETAIL: record.detail,
                names.REMOTE_TOKENS: record.remote_tokens,
                names.LOST_TOKENS: record.lost_tokens,
                "http.response.status_code": record.status,
            }
        )
        self._span.end(error=str(record.status) if record.status >= 500 else None)


def _reused(record: TurnRecord) -> int | None:
    """Return the prompt tokens that were not computed, wherever their KV came from."""
    if record.local_tokens is None and record.remote_tokens is None:
        return None
    return (record.local_tokens or 0) + (record.remote_tokens or 0)
