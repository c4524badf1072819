"""The experiment as a page and a picture: docs/savings.md, docs/images/savings.svg."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from benchmarks import pairs
from benchmarks.article import said
from benchmarks.article.picture import draw

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.article.turns import Arm, Arrangement, Turn

_HEAD: Final = """# What reuse saves

The experiment of the article on bidirectional KV transfer, in ratio: conversations of {turns} turns whose first message has 125 to
20,000 tokens and whose later ones add 64, each run twice on one real prefill/decode pair (vLLM's CPU build, real NIXL transfers), one after
the other and in alternating order: once through a router that withholds every handle (`--holdout 1`: reuse off) and once through one
that does not (on). Each conversation has a router of its own, so nothing is left of the other arm. Texts differ between the arms
and have equal token counts. {conversations} pairs of conversations for each length.

    python -m benchmarks.article run cold    # and warm, and slow, slower (as root); again until nothing is missing
    python -m benchmarks.article report      # this page

{date}; {machine}; {versions}. The model has 7.3 million random weights (2 layers,
hidden size 512; 2 KiB of KV a token), so that one core takes seconds to compute 20,000 tokens. Seconds say nothing about a GPU; ratios say
what is saved where computing is that much dearer than moving; the low end of a spread is its safe reading. The article's own ratios of TTFT, reuse off to on: Qwen3-32B
1.3 at 2k and 1.7 at 24k tokens, GLM-5-FP8 1.4 at 2k and 3.3 at 20k.

![Time to first token against prompt length, reuse off and on](images/savings.svg)
"""
_TITLES: Final[dict[Arrangement, str]] = {
    "cold": "Prefill's prefix cache off, as in the article",
    "warm": "Prefill's prefix cache on",
    "slow": "Prefill's prefix cache off, over a network of 100 Mbit/s",
    "slower": "Prefill's prefix cache off, over a network of 10 Mbit/s",
}
_COLUMNS: Final = (
    "first prompt, tokens",
    "turns",
    "TTFT off, ms: p50 / p90",
    "TTFT on, ms: p50 / p90",
    "off / on",
    "prefill off / on, ms",
    "read back, MB / ms",
    "read back / own cache, on",
)


def write(turns: Sequence[Turn], site: Mapping[str, str], logs: Path, docs: Path) -> str:
    """Write page and picture; return the page."""
    conversations = len({turn.pair for turn in turns})
    head = _HEAD.format(turns=max(turn.turn for turn in turns), conversations=conversations, **site)
    page = "\n".join([head, *(line for name in _measured(turns) for line in _section(turns, name, logs))])
    draw(turns, docs / "images" / "savings.svg")
    (docs / "savings.md").write_text(page.rstrip() + "\n", encoding="utf-8")
    return page


def _measured(turns: Sequence[Turn]) -> list[Arrangement]:
    there = {turn.arrangement for turn in turns}
    return [name for name in _TITLES if name in there]


def _section(turns: Sequence[Turn], arrangement: Arrangement, logs: Path) -> list[str]:
    mine = [turn for turn in turns if turn.arrangement == arrangement]
    lines = [f"## {_TITLES[arrangement]}", "", *table(mine), ""]
    if arrangement != "warm":
        lines += ["### Where it stops to pay", "", *_break_even(mine, logs / arrangement), ""]
    return [*lines, "### What kvdiag says of these logs", "", *said.comparison(logs / arrangement), ""]


def lengths(turns: Sequence[Turn]) -> list[int]:
    """Return the lengths of first messages."""
    return sorted({turn.length for turn in turns})


def table(turns: Sequence[Turn]) -> list[str]:
    """Return a row for the first and one for the later turns of each length."""
    lines = [f"| {' | '.join(_COLUMNS)} |", f"|{'---|' * len(_COLUMNS)}"]
    for length in lengths(turns):
        here = [turn for turn in turns if turn.length == length]
        lines += [_row(length, [turn for turn in here if turn.later == later]) for later in (False, True)]
    return lines


def _row(length: int, turns: Sequence[Turn]) -> str:
    off, on = arm(turns, "off"), arm(turns, "on")
    reads = [turn for turn in on if turn.read_bytes]
    prompts = sum(turn.prompt_tokens for turn in on)
    cells = (
        f"{length:,}",
        "later" if turns[0].later else "first",
        _quantiles(off),
        _quantiles(on),
        pairs.ratio(*[[turn.ttft_s for turn in side] for side in (off, on)]),
        " / ".join(f"{statistics.median(turn.prefill_s for turn in side) * 1e3:.0f}" for side in (off, on)),
        _reads(reads),
        " / ".join(f"{100 * sum(tokens) / prompts:.0f} %" for tokens in _sources(on)),
    )
    return f"| {' | '.join(cells)} |"


def arm(turns: Sequence[Turn], name: Arm) -> list[Turn]:
    """Return the turns of one arm, in the order that makes pairs."""
    return sorted((turn for turn in turns if turn.arm == name), key=lambda turn: (turn.length, turn.pair, turn.turn))


def _quantiles(turns: Sequence[Turn]) -> str:
    deciles = statistics.quantiles((turn.ttft_s * 1e3 for turn in turns), n=10, method="inclusive")
    return f"{deciles[4]:.0f} / {deciles[8]:.0f}"


def _reads(turns: Sequence[Turn]) -> str:
    if not turns:
        return "none"
    size = statistics.median(turn.read_bytes for turn in turns) / 1e6
    return f"{size:.3g} / {statistics.median(turn.read_s for turn in turns) * 1e3:.2g}"


def _sources(turns: Sequence[Turn]) -> tuple[list[int], list[int]]:
    return [turn.remote_tokens for turn in turns], [turn.local_tokens for turn in turns]


def saved(turns: Sequence[Turn]) -> list[tuple[float, float]]:
    """Return, for each length, the tokens read back and the seconds of TTFT saved: medians over pairs of later turns."""
    points = []
    for length in lengths(turns):
        later = [turn for turn in turns if turn.length == length and turn.later]
        both = [(a, b) for a, b in zip(arm(later, "off"), arm(later, "on"), strict=True) if b.remote_tokens]
        if len(both) >= pairs.ENOUGH_PAIRS:
            gain = statistics.median(off.ttft_s - on.ttft_s for off, on in both)
            points.append((statistics.median(on.remote_tokens for _, on in both), gain))
    return points


def break_even(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the tokens at which the seconds saved pass zero for good; None where they never are below it."""
    for (low, loss), (high, gain) in reversed(list(pairwise(points))):
        if loss <= 0 < gain:
            return low + (high - low) * -loss / (gain - loss)
    return None


def _break_even(turns: Sequence[Turn], logs: Path) -> list[str]:
    points = saved(turns)
    listed = ", ".join(f"{gain * 1e3:+.0f} ms at {tokens:.0f}" for tokens, gain in points)
    tokens = break_even(points)
    if tokens:
        found = f"at about {tokens:.0f} tokens"
    else:
        found = f"below {points[0][0]:.0f} tokens, the shortest read here" if points[-1][1] > 0 else "never"
    return [
        f"TTFT saved (median of paired later turns) by tokens read back: {listed}. Break-even: **{found}**.",
        "",
        f"`kvdiag tune` on the same logs: {said.threshold(logs)}",
    ]
