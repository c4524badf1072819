"""The events of one engine, written into its outbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvdiag.connector.handle import Handle

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdiag.connector.outbox import Outbox
    from kvdiag.connector.retention import Retention
    from kvdiag.connector.settings import Settings
    from kvdiag.connector.turn import Turn
    from kvdiag.events import EventKind, Role

_MAX_TEXT = 128
"""Longest id taken over from a stranger's context."""


class Reporter:
    """Turns what happened to a turn into events."""

    def __init__(self, settings: Settings, outbox: Outbox, wall: Callable[[], float]) -> None:
        self._settings = settings
        self._outbox = outbox
        self._wall = wall

    def match(self, turn: Turn) -> None:
        """Report the decision about a request that was admitted, and what was lost by it."""
        outcome, plan = turn.outcome, turn.plan
        if outcome is None:
            return
        position = plan.position if plan is not None and plan.cause == "prefix_diverged" else None
        self.emit(
            turn,
            "match",
            cause=outcome.cause,
            detail=outcome.detail,
            tokens=outcome.remote,
            local_tokens=outcome.local,
            prompt_tokens=turn.prompt,
            queue_s=turn.queue_s,
            lost_tokens=0 if outcome.lost_to else outcome.lost,
            position=position,
        )
        if outcome.lost_to:
            cause, detail = outcome.lost_to
            self.emit(turn, "decline", cause=cause, detail=detail, lost_tokens=outcome.lost, position=position)
        self._kept(turn)

    def _kept(self, turn: Turn) -> None:
        digest, agreement = turn.digest, turn.agreement
        if digest is None or agreement is None or turn.prompt <= digest.prompt:
            return
        response = digest.total - digest.prompt
        kept = min(response, max(0, agreement.tokens - digest.prompt))
        self._outbox.put("kept", kept, response - kept)

    def transfer(self, turn: Turn) -> None:
        """Report a read that has arrived on all ranks."""
        arrival = turn.arrival
        self.emit(
            turn,
            "transfer",
            bytes=arrival.bytes,
            seconds=arrival.seconds,
            post_seconds=arrival.post_seconds,
            descriptors=arrival.descriptors,
            tokens=turn.outcome.remote if turn.outcome else None,
            wait_s=turn.wait_s,
            handshake_s=turn.handshake_s,
        )

    def failure(self, turn: Turn, lost: int) -> None:
        """Report a read that did not arrive; the turn's outcome says why."""
        outcome = turn.outcome
        if outcome is None:
            return
        kind: EventKind = "decline" if outcome.cause == "expired_remote_read" else "failure"
        self.emit(turn, kind, cause=outcome.cause, detail=outcome.detail, lost_tokens=lost, wait_s=turn.wait_s)

    def retain(self, retention: Retention, size: int, tokens: int | None) -> None:
        """Report blocks that are held from now on."""
        self.emit(
            retention.turn, "retain", direction=retention.direction, blocks=retention.blocks, bytes=size, tokens=tokens
        )

    def release(self, retention: Retention, size: int, seconds: float) -> None:
        """Report blocks that are free again."""
        release = retention.release or "read"
        lapsed = release == "expired" and retention.direction == "prefill_to_decode"
        self.emit(
            retention.turn,
            "release",
            direction=retention.direction,
            blocks=retention.blocks,
            bytes=size,
            seconds=seconds,
            release=release,
            cause="expired_handoff" if lapsed else None,
        )

    def suspect(self, request_id: str, reader: str | None) -> None:
        """Report blocks that were read after their release: the request that left them, the one that read them."""
        role: Role = self._settings.role or "decode"
        self._put(
            request_id,
            role,
            "failure",
            {
                "direction": "decode_to_prefill" if role == "decode" else "prefill_to_decode",
                "cause": "suspect_kv",
                "detail": "read_after_release",
                "remote_request_id": reader,
            },
        )

    def emit(self, turn: Turn, kind: EventKind, **fields: Any) -> None:  # noqa: ANN401 - fields of KvEvent
        """Write an event about a turn; None means unknown."""
        fields.setdefault("direction", turn.reads)
        conversation = turn.context.conversation
        if conversation is not None and len(conversation) <= _MAX_TEXT:
            fields.update(conversation=conversation, turn=turn.context.turn)
        if isinstance(turn.handle, Handle) and kind not in ("retain", "release"):
            fields["remote_request_id"] = turn.handle.request_id
            fields["peer"] = self._peer(turn.handle) if kind in ("transfer", "failure") else None
        if self._settings.traces_endpoint and turn.context.traceparent is not None:
            fields["traceparent"] = turn.context.traceparent[:_MAX_TEXT]
        self._put(turn.request_id, turn.role, kind, fields)

    def _peer(self, handle: Handle) -> str:
        return handle.address if self._settings.peer_addresses else handle.engine_id

    def _put(self, request_id: str, role: Role, kind: EventKind, fields: dict[str, Any]) -> None:
        fields.update(t=self._wall(), request_id=request_id, role=role, engine_id=self._settings.engine_id, kind=kind)
        self._outbox.put("event", fields)
