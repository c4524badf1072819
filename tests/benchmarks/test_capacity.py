"""The same agents come to every TTL, and the best of them is the one with the lowest p95."""

from __future__ import annotations

import math
from dataclasses import replace

from benchmarks.capacity import page
from benchmarks.capacity.arrivals import CONVERSATIONS_PER_S, TURNS, plans
from benchmarks.capacity.trial import Trial

TRIAL = Trial(
    ttl_s=30,
    turns=100,
    unanswered=0,
    later=75,
    reused=70,
    ttft_p50_s=0.2,
    ttft_p95_s=0.5,
    retained_bytes_mean=1e6,
    retained_bytes_max=2e6,
    waiting_mean=0.0,
    waiting_max=1.0,
    tuned_s=30,
    tuned_within_s=None,
)


def test_equal_seeds_give_equal_agents() -> None:
    assert plans(60, seed=3) == plans(60, seed=3) != plans(60, seed=4)


def test_agents_arrive_at_the_rate_and_within_the_time() -> None:
    found = plans(3_000)
    assert 0.9 < len(found) / (3_000 * CONVERSATIONS_PER_S) < 1.1
    assert all(0 < plan.begins_s < 3_000 and len(plan.thinks_s) == TURNS - 1 for plan in found)


def test_the_page_names_the_best_ttl_and_where_longer_ones_hurt() -> None:
    trials = [
        replace(TRIAL, ttl_s=5, ttft_p95_s=0.9),
        TRIAL,
        replace(TRIAL, ttl_s=120, ttft_p95_s=7.0),
        replace(TRIAL, ttl_s=480, ttft_p95_s=math.inf),
    ]
    assert "| 200 | never |" in page._row(trials[-1])
    said = page._conclusion(trials)
    assert "TTL of **30 s**" in said
    assert "From 120 s on longer retention hurts: p95 TTFT (ms) is 7000 instead of 500" in said
    assert "did not hurt" in page._conclusion(trials[:2])
