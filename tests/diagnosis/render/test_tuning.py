"""What `tune` says on a terminal."""

from __future__ import annotations

import pytest

from kvdiag.diagnosis.render import Style, show
from kvdiag.diagnosis.render.tuning import render
from kvdiag.diagnosis.tuning import Advice, CostRow, Line, TtlRow, Tuning


def a_tuning() -> Tuning:
    return Tuning(
        turns=200,
        gaps=100,
        bytes_per_token=98_304,
        prefill=Line(fixed_s=0.02, per_token_s=200e-6, points=100),
        read=None,
        rows=[
            TtlRow(ttl_s=60, reusable=0.5, held_tokens=1000, held_bytes=98e6),
            TtlRow(ttl_s=480, reusable=1.0, held_tokens=4000, held_bytes=None),
        ],
        costs=[
            CostRow(tokens=64, compute_s=0.01, read_s=0.03),
            CostRow(tokens=1024, compute_s=0.2, read_s=0.05),
        ],
        advice=[
            Advice(setting="decoder_kv_blocks_ttl", value=480, unit="s", why="all"),
            Advice(setting="kv_recompute_threshold", value=None, unit="tokens", why="too thin"),
        ],
    )


def test_shows_speeds_plot_and_settings() -> None:
    text = render(a_tuning(), Style(color=False, width=120))
    assert "KV takes 98.3 kB a token" in text
    assert "prefill computes: 20 ms + 200 us a token (100 turns)" in text
    assert "prefill reads back: too few turns to tell" in text
    assert "98 MB" in text
    assert "480 s" in text
    assert "too thin" in text


@pytest.mark.parametrize(("ttl", "bars"), [("60 s", 15), ("480 s", 30)])
def test_bars_are_as_long_as_the_share(ttl: str, bars: int) -> None:
    line = next(line for line in render(a_tuning(), Style(color=False)).splitlines() if line.strip().startswith(ttl))
    assert line.split("%")[0].count("█") == bars


def test_json_has_its_schema() -> None:
    assert '"schema": "kvdiag.tuning/1"' in show(a_tuning(), "tuning", "json")


@pytest.mark.parametrize(("tokens", "faster"), [("64", "compute"), ("1,024", "read")])
def test_says_which_is_faster_at_each_length(tokens: str, faster: str) -> None:
    line = next(line for line in render(a_tuning(), Style(color=False)).splitlines() if line.split()[:1] == [tokens])
    assert line.split()[-1] == faster
