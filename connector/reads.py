"""Which reads prefill offers to upstream: the checks in order, and the params as upstream gets to see them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from kvdiag.connector.digest import PrefixDigest, Salt
from kvdiag.connector.handle import Flaw, Handle
from kvdiag.connector.plan import Layout, Plan, cut_blocks, expired, plan_read, refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdiag.connector.peers import Peers
    from kvdiag.connector.settings import Settings
    from kvdiag.connector.turn import Turn


class Request(Protocol):
    """What is needed of vLLM's Request."""

    request_id: str
    kv_transfer_params: Any
    num_prompt_tokens: int
    num_computed_tokens: int
    prompt_token_ids: list[int] | None
    prompt_embeds: Any
    """Where set, the token ids say nothing."""
    arrival_time: float


class Reads:
    """Decides, for one prefill engine."""

    def __init__(
        self,
        settings: Settings,
        layout: Layout,
        peers: Peers,
        *,
        can_read_back: bool,
        may_notify_strangers: bool,
        wall: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._layout = layout
        self._peers = peers
        self._can_read_back = can_read_back
        self._may_notify_strangers = may_notify_strangers
        self._wall = wall

    def plan(self, turn: Turn, request: Request, salt: Callable[[], Salt]) -> Plan:
        """Return what may be read for this request now; the answer can get worse while the request waits."""
        if turn.outcome is not None:
            # Asked again after a failed read or a preemption: upstream would claim the tokens and queue no read.
            return refuse(turn.outcome.cause, turn.outcome.detail)
        if not self._can_read_back:
            return refuse("feature_off", "prefill")
        handle = turn.handle
        if not isinstance(handle, Handle):
            return _plan_flawed(handle)
        refusal = self._refusal(handle, turn, request)
        if refusal is not None:
            return refusal
        self._compare(turn, handle, request, salt)
        plan = plan_read(handle, turn.prompt, turn.digest, turn.agreement, self._layout)
        if min(handle.tokens, turn.prompt) < self._settings.recompute_threshold:
            # All of it would not be worth a read: where it parts makes no difference.
            plan = replace(plan, cause=None, detail=None)
        stranger = not self._may_notify_strangers and not self._peers.reached(handle.engine_id)
        return replace(plan, offer="withhold") if plan.offer == "release" and stranger else plan

    def _refusal(self, handle: Handle, turn: Turn, request: Request) -> Plan | None:
        if self._peers.used(handle):
            return refuse("missing_metadata", "consumed")
        avoided, detail = self._peers.avoided(handle.engine_id)
        if avoided:
            return refuse("peer_unreachable", detail)
        ttl_s = handle.context.ttl_s if handle.context is not None else None
        if expired(self._age(turn, request), self._settings.decode_ttl_s if ttl_s is None else ttl_s):
            return refuse("expired_remote_read", "declined")
        return None

    def _age(self, turn: Turn, request: Request) -> float | None:
        """Return the handle's age by the reader's best knowledge: a duration told, else two hosts' wall clocks."""
        now = self._wall()
        age_s, issued_at = turn.context.age_s, turn.context.issued_at
        if age_s is not None and math.isfinite(age_s) and age_s >= 0:
            return age_s + max(0.0, now - request.arrival_time)
        if issued_at is not None and math.isfinite(issued_at):
            return max(0.0, now - issued_at)
        return None

    def _compare(self, turn: Turn, handle: Handle, request: Request, salt: Callable[[], Salt]) -> None:
        """Compare the prompt with the tokens held, once."""
        if turn.compared:
            return
        turn.compared = True
        if not self._settings.verify or handle.context is None or request.prompt_token_ids is None:
            return
        turn.digest = PrefixDigest.decode(handle.context.prefix)
        if turn.digest is not None:
            turn.agreement = turn.digest.agreement(request.prompt_token_ids, salt())


def show(params: dict[str, Any], turn: Turn, plan: Plan) -> None:
    """Change a prefill request's params so that upstream does what the plan says."""
    if plan.offer == "withhold":
        params.pop("remote_block_ids", None)
        return
    params["remote_num_tokens"] = plan.tokens
    if plan.offer == "cut" and isinstance(turn.handle, Handle) and turn.digest is not None:
        params["remote_block_ids"] = cut_blocks(turn.handle, plan.tokens, turn.digest.block)


def _plan_flawed(flaw: Flaw | None) -> Plan:
    if flaw is not None and flaw.releasable:
        return Plan("release", 0, "missing_metadata", "incomplete")
    return refuse("missing_metadata", "incomplete")
