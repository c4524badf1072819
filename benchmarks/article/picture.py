"""Time to first token against prompt length."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from benchmarks.article.turns import ARMS, Arm, Arrangement, Turn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

_COLOURS: Final[dict[Arm, str]] = {"off": "#c4162a", "on": "#1f60c4"}
_TITLES: Final[dict[Arrangement, str]] = {
    "cold": "prefill's prefix cache off",
    "warm": "prefill's prefix cache on",
    "slow": "prefill's prefix cache off, 100 Mbit/s",
    "slower": "prefill's prefix cache off, 10 Mbit/s",
}


def draw(turns: Sequence[Turn], path: Path) -> None:
    """Write the picture: medians of later turns, and the band from the tenth to the ninetieth percentile."""
    from matplotlib import rcParams  # noqa: PLC0415 - only pictures need it
    from matplotlib.figure import Figure  # noqa: PLC0415

    rcParams["svg.hashsalt"] = "kvdiag"
    figure = Figure(figsize=(11, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    for panel, arrangement in zip(axes.flat, _TITLES, strict=True):
        mine = [turn for turn in turns if turn.arrangement == arrangement and turn.later]
        panel.set_visible(bool(mine))
        _panel(panel, mine)
        panel.set_title(_TITLES[arrangement])
        panel.set_ylabel("TTFT of later turns, ms")
    axes.flat[0].legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def _panel(axes: Axes, turns: Sequence[Turn]) -> None:
    for arm in ARMS:
        points = sorted({turn.length for turn in turns})
        deciles = [
            statistics.quantiles(
                (turn.ttft_s * 1e3 for turn in turns if turn.arm == arm and turn.length == length),
                n=10,
                method="inclusive",
            )
            for length in points
        ]
        axes.fill_between(
            points, [ten[0] for ten in deciles], [ten[8] for ten in deciles], color=_COLOURS[arm], alpha=0.15
        )
        axes.plot(points, [ten[4] for ten in deciles], marker="o", color=_COLOURS[arm], label=f"reuse {arm}")
    axes.set(xscale="log", yscale="log", xlabel="tokens of the first prompt")
    axes.set_xticks(points, [f"{point:,}" for point in points])
    axes.minorticks_off()
    axes.grid(visible=True, color="#dddddd")
    axes.spines[["top", "right"]].set_visible(False)
