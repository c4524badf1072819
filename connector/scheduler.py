"""The scheduler's side: decides what may be read, follows each request, and says what became of it.

It sees plain data only (requests, params, counts), never vLLM's own classes, so that it can be tested without them.
Every method is called by the engine's only scheduler thread.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from kvdiag import context
from kvdiag.connector import handle as handles
from kvdiag.connector.digest import PrefixDigest, Salt
from kvdiag.connector.handle import Flaw, Handle
from kvdiag.connector.peers import Peers
from kvdiag.connector.quarantine import Quarantine
from kvdiag.connector.reads import Reads, show
from kvdiag.connector.report import Reporter
from kvdiag.connector.retention import Retention, Retentions
from kvdiag.connector.turn import Turn, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvdiag.connector.outbox import Item, Outbox
    from kvdiag.connector.plan import Layout
    from kvdiag.connector.quarantine import Block
    from kvdiag.connector.reads import Request
    from kvdiag.connector.settings import Settings
    from kvdiag.events import Release


class SchedulerSide:
    """One per engine, in the process of its scheduler."""

    def __init__(
        self,
        settings: Settings,
        layout: Layout,
        outbox: Outbox,
        *,
        can_read_back: bool,
        may_notify_strangers: bool = True,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._layout = layout
        self._outbox = outbox
        self._clock = clock
        self._wall = wall
        self._turns: dict[str, Turn] = {}
        self._peers = Peers(clock)
        self.quarantine = Quarantine()
        self._reads = Reads(
            settings,
            layout,
            self._peers,
            can_read_back=can_read_back,
            may_notify_strangers=may_notify_strangers,
            wall=wall,
        )
        self._retentions = Retentions(layout.block_bytes)
        self._report = Reporter(settings, outbox, wall)
        self._notes: dict[str, str] = {}
        outbox.put("cache", layout.blocks)

    # A request arrives.

    def admit(self, request: Request) -> None:
        """Take note of a new request and take out of its params what upstream could not survive."""
        params = request.kv_transfer_params
        if not isinstance(params, dict) or not params:
            request.kv_transfer_params = None
            return
        for key in handles.INTERNAL_KEYS:
            params.pop(key, None)
        prefill = bool(params.get("do_remote_decode"))
        reads = prefill or bool(params.get("do_remote_prefill"))
        handle = (handles.read_back if prefill else handles.hand_off)(params) if reads else None
        if prefill or isinstance(handle, Flaw):
            params["do_remote_prefill"] = False
        if isinstance(handle, Flaw) and not handle.releasable:
            params.pop("remote_block_ids", None)
        self._turns[request.request_id] = Turn(
            request=request,
            role="prefill" if prefill else "decode",
            context=context.parse(context.TurnContext, params) or context.TurnContext(),
            prompt=request.num_prompt_tokens,
            handle=handle,
            arrived_at=self._clock(),
        )

    # The scheduler asks what can be had from elsewhere, possibly often, then admits the request.

    def offer(self, request: Request, salt: Callable[[], Salt]) -> bool:
        """Let upstream see of a prefill request's handle only what can and may be read; return True when done."""
        turn = self._turns.get(request.request_id)
        if turn is None or turn.role != "prefill" or turn.handle is None:
            return True
        plan = self._reads.plan(turn, request, salt)
        if turn.outcome is None:
            turn.plan = plan
        show(request.kv_transfer_params, turn, plan)
        return True

    def withhold(self, request: Request) -> None:
        """Offer nothing: what remains when `offer` has failed."""
        params = request.kv_transfer_params
        if isinstance(params, dict) and params.get("do_remote_decode"):
            params.pop("remote_block_ids", None)

    def matched(self, request: Request, local: int) -> None:
        """Keep the length of the local match that the decision rests on."""
        turn = self._turns.get(request.request_id)
        if turn is not None and turn.outcome is None:
            turn.local = local

    def admitted(self, request: Request, external: int, blocks: Sequence[Sequence[Block]] = ()) -> None:
        """Take the decision down: so many tokens are claimed from the other engine, into these blocks."""
        turn = self._turns.get(request.request_id)
        if turn is None or turn.outcome is not None:
            return
        turn.outcome = judge(turn, external)
        now = self._clock()
        turn.queue_s = now - turn.arrived_at
        if external > 0:
            turn.claimed_at, turn.blocks = now, blocks
        if turn.role == "prefill" or turn.handle is not None:
            self._report.match(turn)
        if turn.role == "prefill":
            self._use(turn, external)

    def _use(self, turn: Turn, external: int) -> None:
        """Remember that the handle is used up, and let decode know by whom and how."""
        handle, plan = turn.handle, turn.plan
        if not isinstance(handle, Handle) or plan is None or plan.offer == "withhold":
            return
        self._peers.use(handle)
        if external and turn.agreement is None:
            self._outbox.put("unverified")
        if handle.context is not None and handle.context.notes:
            self._notes[turn.request_id] = "read" if external else "notified"

    def take_notes(self) -> dict[str, str]:
        """Return, for the workers, how each request of this step uses its handle."""
        notes, self._notes = self._notes, {}
        return notes

    # Workers report.

    def absorb(self, items: Iterable[Item]) -> None:
        """Take in what the workers reported in this step."""
        for item in items:
            handler = self._HANDLERS.get(item[0])
            if handler is None:
                self._outbox.put(*item)
            else:
                handler(self, *item[1:])

    def _moved(self, request_id: str, size: int, seconds: float, post: float, descriptors: int) -> None:
        turn = self._turns.get(request_id)
        if turn is None:
            return
        arrival = turn.arrival
        arrival.bytes += size
        arrival.descriptors += descriptors
        arrival.seconds = max(arrival.seconds, seconds)
        arrival.post_seconds = max(arrival.post_seconds, post)

    def _failed(self, request_id: str, cause: str, detail: str | None, engine_id: str | None) -> None:
        turn = self._turns.get(request_id)
        if turn is not None and turn.arrival.failure is None:
            turn.arrival.failure = (cause, detail)
        if engine_id is None:
            return
        if cause == "peer_unreachable":
            self._peers.avoid(engine_id, detail)
        elif detail == "stalled":
            self._peers.avoid(engine_id, None)
        elif cause == "transfer_failed":
            self._peers.strike(engine_id)

    def _stalled(self, request_id: str) -> None:
        turn = self._turns.get(request_id)
        if turn is not None and turn.waiting:
            self.quarantine.hold(request_id, turn.blocks)
            turn.stalled = True

    def _settled(self, request_id: str) -> None:
        self.quarantine.settle(request_id)

    def _handshake(self, engine_id: str, seconds: float, cause: str | None, detail: str | None) -> None:
        self._outbox.put("handshake", engine_id, seconds, cause, detail)
        if cause is not None:
            self._peers.avoid(engine_id, detail)
            return
        self._peers.reach(engine_id)
        for turn in self._turns.values():
            if turn.waiting and isinstance(turn.handle, Handle) and turn.handle.engine_id == engine_id:
                turn.handshake_s = seconds

    def _suspect(self, request_id: str, reader: str | None) -> None:
        self._report.suspect(request_id, reader)

    def _released(self, request_id: str, release: Release) -> None:
        self._retentions.mark(request_id, release)

    _HANDLERS: ClassVar[dict[str, Callable[..., None]]] = {
        "moved": _moved,
        "failed": _failed,
        "stalled": _stalled,
        "settled": _settled,
        "handshake": _handshake,
        "suspect": _suspect,
        "released": _released,
    }

    def received(self, request_ids: Iterable[str]) -> None:
        """Close the reads of these requests: they are over on all ranks, one way or the other."""
        for request_id in request_ids:
            turn = self._turns.get(request_id)
            if turn is None or turn.claimed_at is None or not turn.waiting:
                continue
            turn.wait_s, turn.blocks = self._clock() - turn.claimed_at, ()
            if turn.stalled and not turn.over:
                # Other blocks, then: upstream would compute from the first that failed on, in those that it has.
                turn.request.num_computed_tokens = 0
            if turn.over:
                del self._turns[request_id]
            if turn.arrival.failure is None:
                if isinstance(turn.handle, Handle):
                    self._peers.forgive(turn.handle.engine_id)
                self._report.transfer(turn)
            else:
                self._fail(turn, *turn.arrival.failure)

    def _fail(self, turn: Turn, cause: str, detail: str | None) -> None:
        outcome = turn.outcome
        if outcome is None:
            return
        if cause == "expired_remote_read":
            detail = "failed_request" if self._settings.failure_policy == "fail" else "declined"
        lost, outcome.remote = outcome.remote, 0
        outcome.cause, outcome.detail, outcome.lost = cause, detail, outcome.lost + lost
        self._report.failure(turn, lost)

    # A request ends, and later what it left behind.

    def finished(
        self,
        request: Request,
        blocks: Sequence[Sequence[int]],
        params: dict[str, Any] | None,
        tokens: Callable[[], list[int]],
        salt: Callable[[], Salt],
    ) -> None:
        """Add to the params that go back what router and next engine need; None: nothing goes back."""
        turn = self._turns.get(request.request_id)
        if turn is None:
            return
        turn.over = True
        if not turn.waiting:
            del self._turns[request.request_id]
        if params is None:
            return
        held = sum(len(group) for group in blocks)
        if held:
            turn.handle = turn.digest = turn.plan = None  # of no use any more, and held for as long as the blocks
            retention = Retention(turn, turn.holds_for, held, self._clock())
            self._retentions.open(retention)
            self._report.retain(retention, self._retentions.bytes_of(held), params.get("remote_num_tokens"))
            self._outbox.put("retained", *self._retentions.for_later_turns)
        if turn.role == "prefill":
            params[context.KEY] = turn.summary()
        else:
            params[context.KEY] = self._handle_context(request, params, tokens, salt)

    def _handle_context(
        self, request: Request, params: dict[str, Any], tokens: Callable[[], list[int]], salt: Callable[[], Salt]
    ) -> dict[str, Any]:
        told = context.HandleContext(
            prompt_tokens=request.num_prompt_tokens,
            ttl_s=self._settings.decode_ttl_s,
            issued_at=self._wall(),
            notes=True,
        )
        held = params.get("remote_num_tokens")
        tokens_only = request.prompt_token_ids is not None and request.prompt_embeds is None
        if held and self._settings.verify and tokens_only:
            digest = PrefixDigest.of(tokens()[:held], request.num_prompt_tokens, self._layout.block_size, salt())
            told.prefix = digest.encode()
        return msgspec.to_builtins(told)  # type: ignore[no-any-return]

    def released(self, request_ids: Iterable[str]) -> None:
        """Close the retention of these requests: their blocks are free again on all ranks."""
        for request_id in request_ids:
            retention = self._retentions.close(request_id)
            if retention is None:
                continue
            size = self._retentions.bytes_of(retention.blocks)
            self._report.release(retention, size, self._clock() - retention.since)
            self._outbox.put("retained", *self._retentions.for_later_turns)
