"""Every message that the diagnosis reads, as data: how to find it fast, how to take it apart, a sample, its source."""

from __future__ import annotations

from typing import Final

from kvdiag.diagnosis.patterns import engine, gateways, native, others, router, transfers
from kvdiag.diagnosis.patterns.base import Pattern

__all__ = ["PATTERNS", "Pattern"]

PATTERNS: Final[tuple[Pattern, ...]] = (
    *transfers.EXPIRY,
    *transfers.FAILURE,
    *transfers.PEERS,
    *engine.CONFIG,
    *engine.DECISION,
    *engine.ENDING,
    *engine.LOAD,
    *router.LINES,
    *gateways.PRODUCTION_STACK,
    *gateways.VLLM_ROUTER,
    *gateways.LLM_D,
    *native.LINES,
    *others.METRICS,
    *others.RECORD,
    *others.FOREIGN,
)
"""Every pattern; its index is its number in the scanner."""
