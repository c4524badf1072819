"""What the scheduler's side remembers about one request from its arrival to its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kvdiag import context
from kvdiag.causes import CAUSES
from kvdiag.connector.handle import Flaw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvdiag.causes import Direction
    from kvdiag.connector.digest import Agreement, PrefixDigest
    from kvdiag.connector.handle import Handle
    from kvdiag.connector.plan import Plan
    from kvdiag.connector.quarantine import Block
    from kvdiag.connector.reads import Request
    from kvdiag.events import Role

_MISSING: Final = CAUSES["missing_metadata"].details
_LOOKUPS: Final[dict[str, tuple[str, str | None]]] = {
    "first_turn": ("first_turn", None),
    "restarted": ("peer_unreachable", "restarted"),
    "in_history": ("prefix_diverged", "in_history"),
}
"""Why a router sent no handle, where that is not a detail of missing_metadata."""


@dataclass(slots=True)
class Outcome:
    """Where the prompt's KV came from, and why not from elsewhere. Tokens are counts."""

    cause: str
    detail: str | None = None
    local: int = 0
    remote: int = 0
    lost: int = 0
    """Held remotely, computed all the same."""
    lost_to: tuple[str, str | None] | None = None
    """Cause and detail of the loss where they are not those of the turn."""


@dataclass(slots=True)
class Arrival:
    """What the ranks reported about one read, so far."""

    bytes: int = 0
    seconds: float = 0.0
    """The slowest rank: they read side by side."""
    post_seconds: float = 0.0
    descriptors: int = 0
    failure: tuple[str, str | None] | None = None


@dataclass(slots=True)
class Turn:
    """One request with `kv_transfer_params`."""

    request: Request
    role: Role
    context: context.TurnContext
    prompt: int
    handle: Handle | Flaw | None
    """What the other engine is said to hold; None where the request brought nothing."""
    digest: PrefixDigest | None = None
    agreement: Agreement | None = None
    compared: bool = False
    plan: Plan | None = None
    local: int = 0
    outcome: Outcome | None = None
    """None until the scheduler has admitted the request."""
    arrived_at: float = 0.0
    queue_s: float | None = None
    """From its arrival until it was admitted."""
    claimed_at: float | None = None
    wait_s: float | None = None
    handshake_s: float | None = None
    arrival: Arrival = field(default_factory=Arrival)
    blocks: Sequence[Sequence[Block]] = ()
    """What a read that is under way writes to."""
    stalled: bool = False
    """The read was given up, and may yet write to its blocks."""
    over: bool = False
    """vLLM has finished the request. Under `fail` it does so before it tells what became of the read."""

    @property
    def request_id(self) -> str:
        """The id that vLLM gave it."""
        return self.request.request_id

    @property
    def waiting(self) -> bool:
        """Whether a read was claimed that has neither arrived nor failed on all ranks."""
        return self.claimed_at is not None and self.wait_s is None

    @property
    def reads(self) -> Direction:
        """The direction in which this request reads."""
        return "decode_to_prefill" if self.role == "prefill" else "prefill_to_decode"

    @property
    def holds_for(self) -> Direction:
        """The direction in which its own blocks are read later."""
        return "prefill_to_decode" if self.role == "prefill" else "decode_to_prefill"

    def summary(self) -> dict[str, Any] | None:
        """Return the `TurnOutcome` for the router; None before the request was admitted."""
        if self.outcome is None:
            return None
        return {
            "v": context.VERSION,
            "cause": self.outcome.cause,
            "detail": self.outcome.detail,
            "prompt_tokens": self.prompt,
            "local_tokens": self.outcome.local,
            "remote_tokens": self.outcome.remote,
            "lost_tokens": self.outcome.lost,
            "queue_s": self.queue_s,
            "wait_s": self.wait_s,
        }


def judge(turn: Turn, external: int) -> Outcome:
    """Return how a request that was admitted with so many tokens to read got its KV."""
    local, plan, handle = turn.local, turn.plan, turn.handle
    if turn.role == "decode":
        return _handed_off(turn, external)
    if plan is None or handle is None:
        return _without_handle(turn.context, local)
    held = min(getattr(handle, "tokens", 0), turn.prompt)
    if plan.cause is None and plan.position is not None:
        held = min(held, plan.position)
    reused = local + external
    outcome = Outcome(
        "remote_hit" if external else "local_hit", local=local, remote=external, lost=max(0, held - reused)
    )
    if outcome.lost == 0 and reused:
        return outcome
    lost_to = ("below_threshold", None) if plan.cause is None else (plan.cause, plan.detail)
    little = plan.cause is None and external
    if little or (plan.detail == "in_response" and reused > outcome.lost):
        outcome.lost_to = lost_to
    else:
        outcome.cause, outcome.detail = lost_to
    return outcome


def _handed_off(turn: Turn, external: int) -> Outcome:
    if isinstance(turn.handle, Flaw):
        return Outcome("missing_metadata", "incomplete", local=turn.local)
    return Outcome("remote_hit" if external else "local_hit", local=turn.local, remote=external)


def _without_handle(asked: context.TurnContext, local: int) -> Outcome:
    if local:
        return Outcome("local_hit", local=local)
    lookup = asked.lookup or ""
    if lookup in _LOOKUPS:
        return Outcome(*_LOOKUPS[lookup])
    return Outcome("missing_metadata", lookup if lookup in _MISSING else None)
