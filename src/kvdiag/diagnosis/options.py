"""What a caller may choose about a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

FELT_S: Final = 0.5
"""No turn counts as slow, unless a limit says so, that answers within this time."""
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

    @property
    def felt_s(self) -> float | None:
        """Return from which time to first token on a turn needs a look of its own; None where every turn does."""
        return None if self.turns else min(self.slow_s or FELT_S, FELT_S)
