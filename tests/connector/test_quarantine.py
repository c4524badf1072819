"""Blocks that a read given up may still write to are nobody else's until it is over."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kvdiag.connector.quarantine import Quarantine

if TYPE_CHECKING:
    from collections.abc import Sequence


class FakePool:
    def __init__(self) -> None:
        self.references: Counter[int] = Counter()

    def touch(self, blocks: Sequence[Any]) -> None:
        self.references.update(block.block_id for block in blocks)

    def free_blocks(self, ordered_blocks: Sequence[Any]) -> None:
        self.references.subtract(block.block_id for block in ordered_blocks)


def block(number: int, *, cached: bool = False, null: bool = False) -> Any:  # noqa: ANN401 - stands in for vLLM's
    return SimpleNamespace(block_id=number, block_hash=b"hash" if cached else None, is_null=null)


BLOCKS = [[block(0, null=True), block(1, cached=True), block(2), block(3)]]


@pytest.fixture
def pool() -> FakePool:
    return FakePool()


@pytest.fixture
def quarantine(pool: FakePool) -> Quarantine:
    made = Quarantine()
    made.bind(pool)
    return made


def test_what_a_read_writes_to_is_held_until_it_is_over(quarantine: Quarantine, pool: FakePool) -> None:
    quarantine.hold("r", BLOCKS)
    assert pool.references == {2: 1, 3: 1}
    quarantine.settle("r")
    assert not +pool.references


def test_every_rank_that_gave_the_read_up_has_to_settle(quarantine: Quarantine, pool: FakePool) -> None:
    quarantine.hold("r", BLOCKS)
    quarantine.hold("r", BLOCKS)
    quarantine.settle("r")
    assert pool.references == {2: 1, 3: 1}
    quarantine.settle("r")
    assert not +pool.references


def test_an_unknown_read_frees_nothing(quarantine: Quarantine, pool: FakePool) -> None:
    quarantine.settle("r")
    assert pool.references == {}


def test_without_a_pool_nothing_can_be_held() -> None:
    with pytest.raises(RuntimeError, match="block pool"):
        Quarantine().hold("r", BLOCKS)
