"""A turn's cause: from the look-up, from prefill's connector, or inferred from what stock vLLM tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from kvdiag import context

if TYPE_CHECKING:
    from kvdiag.router.answers import PrefillAnswer
    from kvdiag.router.ledger import Claim

LOOKUP_CAUSES: Final = {
    "first_turn": ("first_turn", None),
    "restarted": ("peer_unreachable", "restarted"),
    "in_history": ("prefix_diverged", "in_history"),
}
"""Look-up results that are not details of missing_metadata."""


def explain(claim: Claim, answer: PrefillAnswer, prefill: str) -> context.TurnOutcome:
    """Return the turn's outcome as far as prefill's answer shows it. `prefill` is the engine that answered."""
    told = _told(answer)
    if not claim.hit:
        cause, detail = LOOKUP_CAUSES.get(claim.lookup, ("missing_metadata", claim.lookup))
        counts = told or _counted(claim, answer)
        return msgspec.structs.replace(counts, cause=cause, detail=detail)
    return told or _inferred(claim, answer, prefill)


def _told(answer: PrefillAnswer) -> context.TurnOutcome | None:
    raw = (answer.kv_transfer_params or {}).get(context.KEY)
    if raw is None:
        return None
    try:
        return context.parse(context.TurnOutcome, {context.KEY: msgspec.json.decode(raw)})
    except msgspec.DecodeError:
        return None


def _inferred(claim: Claim, answer: PrefillAnswer, prefill: str) -> context.TurnOutcome:
    """Infer from counts: tokens beyond what this prefill ever computed for the conversation came from decode."""
    counts = _counted(claim, answer)
    entry, cached = claim.entry, answer.cached_tokens
    if answer.kv_transfer_params is None:
        return msgspec.structs.replace(counts, cause="feature_off", detail="no_connector")
    if entry is None or not cached:
        return counts
    seen = entry.prompt_tokens if entry.prefill == prefill else 0
    if seen is None:
        return counts
    if cached > seen:
        return msgspec.structs.replace(counts, cause="remote_hit", local_tokens=seen, remote_tokens=cached - seen)
    return msgspec.structs.replace(counts, cause="local_hit", local_tokens=cached, remote_tokens=0)


def _counted(claim: Claim, answer: PrefillAnswer) -> context.TurnOutcome:
    held = claim.entry.tokens if claim.entry is not None and claim.entry.handle is not None else None
    prompt, cached = answer.prompt_tokens, answer.cached_tokens
    lost = None
    if held is not None and prompt is not None and cached is not None:
        lost = max(0, min(held, prompt) - cached)
    return context.TurnOutcome(cause="unexplained", prompt_tokens=prompt, lost_tokens=lost)
