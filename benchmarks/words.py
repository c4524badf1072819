"""Text for agents to say, from words that the local stack's tokenizer was trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

VOCABULARY: Final = (
    *("read", "edit", "line", "run", "test", "report", "result", "file", "error", "mended", "changed", "next"),
    *("why", "did", "fail", "value", "return", "self", "step", "answer"),
)


def say(chance: random.Random, words: int) -> str:
    """Return so many words; equal generators give equal texts."""
    return " ".join(chance.choice(VOCABULARY) for _ in range(words))
