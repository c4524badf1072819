"""The scale sheet follows from its costs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from benchmarks.scale.exposition import connector_page
from benchmarks.scale.prometheus import variants
from benchmarks.scale.sheet import Deployment, Sheet

from kvdiag.connector.recorder import PEERS


def sheet(plan: Deployment) -> Sheet:
    return Sheet(defaultdict(lambda: 2.0), plan)


def test_load_asks_for_routers_and_memory_in_proportion() -> None:
    plan = Deployment()
    one, two = sheet(plan), sheet(replace(plan, turns_per_s=2 * plan.turns_per_s))
    assert two.routers == pytest.approx(2 * one.routers, abs=1)
    assert two.retained_bytes == pytest.approx(2 * one.retained_bytes)


def test_a_shorter_ttl_keeps_less() -> None:
    plan = Deployment()
    assert sheet(replace(plan, decode_ttl_s=20)).retained_bytes < 0.6 * sheet(plan).retained_bytes


def test_every_line_is_there() -> None:
    assert len({line.what for line in sheet(Deployment()).lines()}) == 6


def test_peers_beyond_the_bound_add_one_label_value() -> None:
    few, many = connector_page(PEERS), connector_page(10 * PEERS)
    each = (few.series() - connector_page(0).series()) / PEERS
    assert many.series() - few.series() == each


def test_a_simulated_engine_moves_every_value_and_no_name() -> None:
    first, second = variants('# HELP a b\na{x="1"} 2.0\nb 0.0\n', number=2)
    assert first == b'# HELP a b\na{x="1"} 2.0\nb 0.0\n'
    lines = [line.rsplit(b" ", 1) for line in second.splitlines()[1:]]
    assert [name for name, _ in lines] == [b'a{x="1"}', b"b"]
    assert all(float(value) >= 1 for _, value in lines)
