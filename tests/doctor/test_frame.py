"""Frames from two scrapes: rates, quantiles, restarts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.doctor.frame import frame, quantile
from kvdiag.doctor.http import Server
from kvdiag.doctor.samples import Samples
from kvdiag.doctor.site import Service, Site

INF = float("inf")


def site(router: str | None = None, prefill: str | None = None, problem: str | None = None) -> Site:
    def made(role: str, page: str | None) -> Service:
        samples = Samples.parse(page) if page is not None else None
        return Service(role, Server.parse(f"http://{role}:1"), samples=samples, problem=problem)  # type: ignore[arg-type]

    return Site(made("router", router) if router is not None else None, (made("prefill", prefill),), ())


def turns(hits: int, misses: int, firsts: int = 0) -> str:
    return (
        f'kvdiag_turns_total{{cause="first_turn",detail="",turn="1"}} {firsts}\n'
        f'kvdiag_turns_total{{cause="remote_hit",detail="",turn="2-4"}} {hits}\n'
        f'kvdiag_turns_total{{cause="missing_metadata",detail="consumed",turn="2-4"}} {misses}\n'
    )


def test_counts_what_happened_in_between() -> None:
    shown = frame(site(turns(10, 0, 5)), site(turns(13, 1, 7)), 2.0)
    assert shown.turns_per_s == pytest.approx(3.0)
    assert shown.reused == pytest.approx(0.75)
    assert [(row.cause, row.turns, row.total) for row in shown.causes] == [
        ("remote_hit", 3, 13),
        ("first_turn", 2, 7),
        ("missing_metadata", 1, 1),
    ]


def test_a_restarted_router_counts_from_zero() -> None:
    assert frame(site(turns(100, 0)), site(turns(4, 0)), 1.0).turns_per_s == 4


def test_without_later_turns_no_share_is_claimed() -> None:
    assert frame(site(turns(1, 0)), site(turns(1, 0, 3)), 1.0).reused is None


@pytest.mark.parametrize("series", ["kvdiag_transfer_bytes_total", "vllm:nixl_bytes_transferred_sum"])
def test_reads_come_from_whichever_connector_is_loaded(series: str) -> None:
    shown = frame(site(prefill=f"{series} 100\n"), site(prefill=f"{series} 300\n"), 4.0)
    assert shown.engines[0].read_bytes_per_s == pytest.approx(50)
    assert shown.engines[0].running is None


def test_a_service_that_is_gone_is_down_and_tells_nothing() -> None:
    shown = frame(site(turns(1, 0), "x 1\n"), site("", None, problem="refused"), 1.0)
    assert not shown.router_up
    assert not shown.engines[0].up
    assert shown.turns_per_s is None


def test_ttft_quantiles_are_those_of_the_interval() -> None:
    def page(*counts: int) -> str:
        rows = zip(("0.1", "0.2", "+Inf"), counts, strict=True)
        return "".join(f'kvdiag_turn_ttft_seconds_bucket{{le="{bound}"}} {count}\n' for bound, count in rows)

    shown = frame(site(page(1000, 1000, 1000)), site(page(1000, 1010, 1010)), 1.0)
    assert shown.ttft_p50_s == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("buckets", "value"),
    [
        ([], None),
        ([(INF, 0)], None),
        ([(1, 10), (INF, 10)], 0.5),
        ([(1, 0), (2, 10), (INF, 10)], 1.5),
        ([(1, 1), (INF, 10)], 1),
    ],
)
def test_quantiles_interpolate(buckets: list[tuple[float, float]], value: float | None) -> None:
    assert quantile(0.5, buckets) == value


@given(st.lists(st.floats(0.001, 1e3), min_size=1, max_size=8, unique=True), st.data())
def test_quantiles_stay_within_the_buckets(bounds: list[float], data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.integers(0, 100), min_size=len(bounds), max_size=len(bounds)))
    counts = [sum(steps[: at + 1]) for at in range(len(steps))]
    value = quantile(0.95, [*zip(sorted(bounds), map(float, counts), strict=True), (INF, float(counts[-1]))])
    assert value is None or 0 <= value <= max(bounds)
