"""What is known of a turn while it runs; what is still unknown when it ends stays None."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from kvdiag.context import TurnContext, TurnOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdiag.events import TurnRecord
    from kvdiag.exporters.spans import Tracer
    from kvdiag.router.bodies import Body
    from kvdiag.router.connection import Connection
    from kvdiag.router.identity import Identifier, Identity
    from kvdiag.router.intake import Request
    from kvdiag.router.ledger import Claim, Ledger
    from kvdiag.router.metrics import Arm, RouterMetrics
    from kvdiag.router.placement import Pool
    from kvdiag.router.settings import Settings
    from kvdiag.router.tracing import TurnTrace


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


class Prefilled(msgspec.Struct, frozen=True):
    """What the decode call starts from; empty where there was no prefill call."""

    params: dict[str, msgspec.Raw] | None = None
    engine: str | None = None
    at: float | None = None
    """When prefill answered, by `time.perf_counter`."""


class TurnState(msgspec.Struct):
    """One turn's request, claim and progress."""

    request: Request
    connection: Connection
    body: Body
    request_id: str
    headers: bytes
    """Header lines of both calls."""
    trace: TurnTrace
    identity: Identity
    claim: Claim
    claimed: bool = False
    """Whether the ledger's entry is ours."""
    arm: Arm = "reuse"
    handle_read: bool = False
    """Whether an engine may have read the handle."""
    failed_read: tuple[str, str | None] | None = None
    """Cause and detail of a prefill call with the handle that failed, so that the turn went on without."""
    status: int = 0
    told_all: bool = False
    """Whether the answer's end is on its way to the client, who may leave when he has read it."""
    retries: int = 0
    prefill: str | None = None
    decode: str | None = None
    prefill_s: float | None = None
    handoff_s: float | None = None
    decode_called_at: float | None = None
    """By `time.perf_counter`; None without a decode call."""
    decode_s: float | None = None
    """From the decode call to the first byte of its answer, or to the end of one that is not streamed."""
    ttft_s: float | None = None
    outcome: TurnOutcome = msgspec.field(default_factory=lambda: TurnOutcome(cause="unexplained"))

    @property
    def answer_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Headers of every answer."""
        return ((b"x-request-id", self.request_id.encode()),)

    def answered(self, at: float) -> None:
        """Take down when decode's answer was there: its first byte, or all of one that is not streamed."""
        if self.decode_called_at is not None:
            self.decode_s = at - self.decode_called_at

    def context(self) -> TurnContext:
        """Return what the connectors are told."""
        claim = self.claim
        with_handle = claim.hit and self.failed_read is None
        return TurnContext(
            conversation=claim.conversation,
            turn=claim.turn,
            lookup=claim.lookup if self.failed_read is None else "consumed",
            traceparent=self.trace.traceparent,
            issued_at=claim.entry.ended_at if with_handle and claim.entry else None,
            age_s=claim.age_s if with_handle else None,
        )
