"""The experiment's results: one line a turn, kept while it runs, so that a run can be broken off and taken up again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Arrangement = Literal["cold", "warm", "slow", "slower"]
"""Prefill's prefix cache off, as in the article; on; off, and both engines on a slow network; on a slower one."""
Arm = Literal["off", "on"]
"""Reuse: off is a router that withholds every handle (holdout 1), everything else is the same."""
ARMS: Final[tuple[Arm, Arm]] = ("off", "on")
TURNS: Final = 6


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn as client, router and connector saw it. Times are seconds, tokens are counts."""

    arrangement: Arrangement
    length: int
    """Tokens of the conversation's first message."""
    pair: int
    """Conversations with the same number were run one after the other, one in each arm."""
    arm: Arm
    turn: int
    ttft_s: float
    """By the client's clock."""
    prompt_tokens: int
    local_tokens: int
    remote_tokens: int
    computed_tokens: int
    prefill_s: float
    cause: str
    read_bytes: int = 0
    read_s: float = 0.0
    """Decode to prefill, by NIXL's own telemetry."""

    @property
    def later(self) -> bool:
        """Return whether there was an earlier turn to reuse."""
        return self.turn > 1


def load(path: Path) -> list[Turn]:
    """Return the turns kept in `path`, none where it is not there yet."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Turn) for line in path.read_bytes().splitlines()]


def keep(path: Path, turns: Iterable[Turn]) -> None:
    """Append a pair of conversations in one write: a pair is kept whole or not at all."""
    lines = b"".join(msgspec.json.encode(turn) + b"\n" for turn in turns)
    with path.open("ab") as file:
        file.write(lines)
