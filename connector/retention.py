"""What this engine holds for others after requests have finished: requests, blocks, bytes, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvdiag.causes import Direction
    from kvdiag.connector.turn import Turn
    from kvdiag.events import Release


@dataclass(slots=True)
class Retention:
    """One finished request whose blocks are held for a read."""

    turn: Turn
    direction: Direction
    blocks: int
    since: float
    release: Release | None = None
    """As a worker reported it; the first rank that says other than "read" decides."""


class Retentions:
    """Everything held now, by request id. Bounded by the blocks that the engine has."""

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._held: dict[str, Retention] = {}
        self._requests = 0
        self._blocks = 0

    def open(self, retention: Retention) -> None:
        """Start to hold."""
        self._held[retention.turn.request_id] = retention
        if retention.direction == "decode_to_prefill":
            self._requests += 1
            self._blocks += retention.blocks

    def mark(self, request_id: str, release: Release) -> None:
        """Note how a rank saw the end coming."""
        retention = self._held.get(request_id)
        if retention is not None and retention.release in (None, "read"):
            retention.release = release

    def close(self, request_id: str) -> Retention | None:
        """Stop to hold; None for a request that was not held."""
        retention = self._held.pop(request_id, None)
        if retention is not None and retention.direction == "decode_to_prefill":
            self._requests -= 1
            self._blocks -= retention.blocks
        return retention

    def bytes_of(self, blocks: int) -> int:
        """Return the memory of so many blocks, over all ranks."""
        return blocks * self._block_bytes

    @property
    def for_later_turns(self) -> tuple[int, int, int]:
        """Requests, blocks and bytes that decode holds now."""
        return self._requests, self._blocks, self.bytes_of(self._blocks)
