"""The trials as a page: docs/capacity.md."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from benchmarks.capacity import arrivals
from benchmarks.capacity.trial import BLOCKS, BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.capacity.trial import Trial

_HEAD: Final = """# How long to keep blocks

Blocks that decode keeps for a conversation's next turn are memory that nobody else can use. Here the same agents meet decode
engines that differ in `decoder_kv_blocks_ttl` only: {rate} conversations a second (Poisson, the same for each), {turns} turns each, first
prompts of about 1,600 tokens, log-normal pauses between turns (median {median:.0f} s, 95 % below 23 s), {seconds:.0f} s of arrivals. Decode's
whole KV cache is {blocks} blocks of 128 tokens ({size:.0f} MB); prefill's prefix cache is off. Times are not scaled, so a TTL of 480 s
stands for any that outlasts the run. A TTL of 5 s reuses nothing: vLLM's prefill does not read blocks that have less than 5 s left.

    python -m benchmarks.capacity run && python -m benchmarks.capacity report

{date}; {machine}; {versions}.

| TTL, s | later turns that reused | retained, MB: mean / most | decode's queue: mean / most | TTFT p50, ms | TTFT p95, ms | unanswered | `kvdiag tune` | `kvdiag tune --memory {half:.0f}MB` |
|---|---|---|---|---|---|---|---|---|
"""


def write(trials: Sequence[Trial], site: Mapping[str, Any], docs: Path) -> str:
    """Write the page and return it."""
    head = _HEAD.format(
        rate=arrivals.CONVERSATIONS_PER_S,
        turns=arrivals.TURNS,
        median=arrivals.THINK_MEDIAN_S,
        blocks=BLOCKS,
        size=BYTES / 1e6,
        half=BYTES / 2e6,
        **site,
    )
    page = head + "\n".join(map(_row, trials)) + "\n\n" + _conclusion(trials) + "\n"
    (docs / "capacity.md").write_text(page, encoding="utf-8")
    return page


def _row(trial: Trial) -> str:
    cells = (
        trial.ttl_s,
        f"{trial.reused} of {trial.later}",
        f"{trial.retained_bytes_mean / 1e6:.0f} / {trial.retained_bytes_max / 1e6:.0f}",
        f"{trial.waiting_mean:.1f} / {trial.waiting_max:.0f}",
        _ms(trial.ttft_p50_s),
        _ms(trial.ttft_p95_s),
        f"{trial.unanswered} of {trial.turns}",
        f"{trial.tuned_s} s" if trial.tuned_s else "no value",
        f"{trial.tuned_within_s} s" if trial.tuned_within_s else "no value",
    )
    return f"| {' | '.join(map(str, cells))} |"


def _ms(seconds: float) -> str:
    return "never" if math.isinf(seconds) else f"{seconds * 1e3:.0f}"


def best(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the lowest p95 of TTFT."""
    return min(trials, key=lambda trial: trial.ttft_p95_s)


def _conclusion(trials: Sequence[Trial]) -> str:
    chosen = best(trials)
    worse = [trial for trial in trials if trial.ttl_s > chosen.ttl_s and trial.ttft_p95_s > chosen.ttft_p95_s]
    hurts = (
        f"From {worse[0].ttl_s} s on longer retention hurts: p95 TTFT (ms) is {_ms(worse[0].ttft_p95_s)} instead of {_ms(chosen.ttft_p95_s)}, "
        f"since blocks of conversations that are over fill the cache and new turns wait for them to expire."
        if worse
        else "Longer retention did not hurt within this budget."
    )
    return f'The best p95 TTFT (ms) is at a TTL of **{chosen.ttl_s} s**. {hurts} "Never": so many turns were not answered at all that the quantile is one of them.'
