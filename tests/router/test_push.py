"""The router's metrics by OTLP: off unless asked for, what `/metrics` says when on."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING

import pytest
from tests.exporters.collector import PROTOCOLS, attributes, over_http
from tests.router.harness import Json, run, running

if TYPE_CHECKING:
    from kvdiag.router.settings import Settings


def chat() -> Json:
    return {"model": "m", "messages": [{"role": "user", "content": "secret prompt"}]}


def talk(endpoint: str, *, genai: bool) -> None:
    def pushing(settings: Settings) -> Settings:
        return dataclasses.replace(settings, otlp_metrics_endpoint=endpoint, otlp_genai_names=genai)

    async def scenario() -> None:
        async with running(change=pushing) as stack:
            await stack.post("/v1/chat/completions", chat(), x_session_id="a")
            await stack.post("/v1/chat/completions", chat(), x_session_id="a")

    run(scenario())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_last_numbers_arrive_when_the_router_ends(protocol: str) -> None:
    with PROTOCOLS[protocol]() as collector:
        talk(collector.url, genai=True)
        arrived = collector.last_push
        turns = sum(point.as_double for point in arrived["kvdiag_turns"].sum.data_points)
        (duration,) = arrived["gen_ai.server.request.duration"].histogram.data_points
        assert (turns, duration.count) == (2, 2)
        assert attributes(collector.metrics[-1].resource)["service.name"] == "kvdiag-router"
        assert "secret" not in str(collector.metrics)


def test_genai_names_are_another_switch() -> None:
    with over_http() as collector:
        talk(collector.url, genai=False)
        assert not [name for name in collector.last_push if name.startswith("gen_ai")]


def test_nothing_is_sent_and_nothing_runs_without_an_endpoint() -> None:
    async def scenario() -> None:
        async with running():
            assert "kvdiag-otlp-metrics" not in {thread.name for thread in threading.enumerate()}

    run(scenario())
