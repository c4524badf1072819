"""Blocks that a read given up may still write to: kept out of use until NIXL says that it is over.

Neither NIXL nor UCX promises that a transfer that was let go of has stopped, so a block given to another request
meanwhile could be overwritten under it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

Block = Any
"""vLLM's KVCacheBlock."""


class BlockPool(Protocol):
    """What is needed of vLLM's BlockPool: references to blocks, counted."""

    def touch(self, blocks: Sequence[Block]) -> None:
        """Add a reference to each."""

    def free_blocks(self, ordered_blocks: Sequence[Block]) -> None:
        """Take one away from each; a block without any is free."""


class Quarantine:
    """One per scheduler. Bounded by the blocks that the engine has."""

    def __init__(self) -> None:
        self._pool: BlockPool | None = None
        self._held: dict[str, tuple[int, list[Block]]] = {}
        """By request: how many ranks still read, and what they write to."""

    def bind(self, pool: BlockPool) -> None:
        """Take the pool that the blocks come from."""
        self._pool = pool

    def hold(self, request_id: str, blocks: Sequence[Sequence[Block]]) -> None:
        """Keep what a read of this request may still write to. Raises RuntimeError before `bind`."""
        if self._pool is None:
            raise RuntimeError("vLLM has not bound its block pool")
        ranks, held = self._held.get(request_id, (0, []))
        if not ranks:
            held = [block for group in blocks for block in group if block.block_hash is None and not block.is_null]
            self._pool.touch(held)
        self._held[request_id] = (ranks + 1, held)

    def settle(self, request_id: str) -> None:
        """Let go of the blocks once the read is over on all ranks that gave it up."""
        ranks, held = self._held.pop(request_id, (0, []))
        if ranks > 1:
            self._held[request_id] = (ranks - 1, held)
        elif self._pool is not None and held:
            self._pool.free_blocks(held)
