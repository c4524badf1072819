"""A turn's cause: from the look-up, from prefill's connector, or inferred from what stock vLLM tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from kvdiag import context
from kvdiag.causes import label_pairs

if TYPE_CHECKING:
    from kvdiag.router.answers import PrefillAnswer
    from kvdiag.router.ledger import Claim
    from kvdiag.router.placement import Engine

LOOKUP_CAUSES: Final = {
    "first_turn": ("first_turn", None),
    "restarted": ("peer_unreachable", "restarted"),
    "in_history": ("prefix_diverged", "in_history"),
}
"""Look-up results that are not details of missing_metadata."""
_PAIRS: Final = frozenset(label_pairs())


Pair = tuple[str, str | None]
"""Cause and detail."""


def lookup_cause(lookup: str) -> Pair:
    """Return why a turn has no handle to send."""
    return LOOKUP_CAUSES.get(lookup, ("missing_metadata", lookup))


def failed_read(*, expired: bool) -> Pair:
    """Return why prefill failed with a handle: stock vLLM fails the request where it declines an expired read."""
    return ("expired_remote_read", "failed_request") if expired else ("upstream_error", None)


def explain(claim: Claim, answer: PrefillAnswer, prefill: Engine, failed: Pair | None = None) -> context.TurnOutcome:
    """Return the turn's outcome as far as prefill's answer shows it.

    `failed` says why an earlier call with the handle failed, if one did.
    """
    if claim.hit and failed is None:
        return _told(answer) or _inferred(claim, answer, prefill)
    cause, detail = failed or _missed(claim.lookup, answer)
    counts = _told(answer) or _local_only(answer)
    return replace(counts, cause=cause, detail=detail, lost_tokens=_lost(claim, counts))


def _missed(lookup: str, answer: PrefillAnswer) -> Pair:
    """Return why a turn had no handle, now that prefill has answered: decode returns none where prefill hands it nothing."""
    if lookup == "not_returned" and answer.kv_transfer_params is None:
        return "feature_off", "no_connector"
    return lookup_cause(lookup)


def _told(answer: PrefillAnswer) -> context.TurnOutcome | None:
    """Return what the connector says; a cause that is not in the table would become a label without bounds."""
    raw = (answer.kv_transfer_params or {}).get(context.KEY)
    if raw is None:
        return None
    try:
        told = context.parse(context.TurnOutcome, {context.KEY: msgspec.json.decode(raw)})
    except (msgspec.DecodeError, RecursionError):
        return None
    if told is None or (told.cause, told.detail or "") not in _PAIRS:
        return None
    return told


def _local_only(answer: PrefillAnswer) -> context.TurnOutcome:
    """Return the counts of a turn without a handle: what prefill did not compute, it had itself."""
    cached = answer.cached_tokens
    remote = None if cached is None else 0
    return context.TurnOutcome(
        cause="unexplained", prompt_tokens=answer.prompt_tokens, local_tokens=cached, remote_tokens=remote
    )


def _inferred(claim: Claim, answer: PrefillAnswer, prefill: Engine) -> context.TurnOutcome:
    """Infer from counts: tokens beyond what this prefill can have kept of the conversation came from decode."""
    unknown = context.TurnOutcome(cause="unexplained", prompt_tokens=answer.prompt_tokens)
    entry, cached = claim.entry, answer.cached_tokens
    if answer.kv_transfer_params is None:
        return replace(unknown, cause="feature_off", detail="no_connector")
    if entry is None or cached is None:
        return unknown
    seen = entry.prompt_tokens if prefill.caches_prefixes and entry.prefill == prefill.name else 0
    if seen is None:
        return unknown
    local = min(cached, seen)
    cause = "remote_hit" if cached > seen else "local_hit" if cached else "unexplained"
    counts = replace(unknown, cause=cause, local_tokens=local, remote_tokens=cached - local)
    return replace(counts, lost_tokens=_lost(claim, counts))


def _lost(claim: Claim, counts: context.TurnOutcome) -> int | None:
    """Return how many of the tokens that decode holds prefill computed all the same."""
    if claim.entry is None or claim.entry.handle is None:
        return counts.lost_tokens
    if counts.prompt_tokens is None or counts.local_tokens is None:
        return counts.lost_tokens
    reused = counts.local_tokens + (counts.remote_tokens or 0)
    return max(0, min(claim.entry.tokens, counts.prompt_tokens) - reused)
