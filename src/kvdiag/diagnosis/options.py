"""What a caller may choose about a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LogRole = Literal["prefill", "decode", "router"]
"""Who wrote a log."""


@dataclass(frozen=True, slots=True)
class Options:
    """Choices of one run of `classify`."""

    slow_s: float | None = None
    """A turn is slow from this time to first token on, seconds; None judges against the log's own baseline."""
    roles: tuple[tuple[LogRole, str], ...] = ()
    """Forced roles as (role, glob over the path); the first match wins."""
    turns: bool = False
    """Fill `Report.per_turn`."""
    jobs: int | None = None
    """Processes that scan; None takes every core that this process may use."""
