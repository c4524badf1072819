from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from tests.router.harness import Act, run, running, until

if TYPE_CHECKING:
    from kvdiag.router.settings import Settings

INFO = 'kvdiag_connector_info{role="decode",ttl_seconds="%s",engine_id="%s",block_size="16"} 1.0\n'


def test_an_engine_that_is_down_gets_no_turns_and_its_handles_are_void() -> None:
    async def scenario() -> None:
        async with running(decodes=2) as stack:
            await stack.chat("hi")
            first, other = stack.decodes if stack.decodes[0].turns else reversed(stack.decodes)
            await first.stop()
            await stack.router.watch.look()
            await stack.chat("hi", "Hello there", "more")
            assert stack.records[1].lookup == "restarted"
            assert stack.records[1].retries == 0
            assert len(other.turns) == 1
            await first.start()
            await stack.router.watch.look()
            assert all(engine.healthy for engine in stack.router.services.decodes.engines)

    run(scenario())


@pytest.mark.parametrize("page", ["", "no"])
def test_an_engine_that_says_it_is_ill_is_passed_over(page: str) -> None:
    async def scenario() -> None:
        async with running(prefills=2) as stack:
            stack.prefills[0].pages["/health"] = page
            await stack.router.watch.look()
            await stack.chat("hi")
            await stack.chat("hi", conversation="other")
            assert len(stack.prefills[0].turns) == (0 if page == "" else 1)

    run(scenario())


def test_decodes_connector_tells_its_ttl_and_identity() -> None:
    async def scenario() -> None:
        async with running() as stack:
            stack.decode.pages["/metrics"] = "# HELP x\n" + INFO % (60, "d-0")
            stack.router.watch._asked.clear()
            await stack.router.watch.look()
            assert stack.sample("kvdiag_router_handle_ttl_seconds") == 53
            await stack.chat("hi")
            stack.decode.pages["/metrics"] = INFO % ("odd", "d-1")
            stack.router.watch._asked.clear()
            await stack.router.watch.look()
            await stack.chat("hi", "Hello there", "more")
            assert stack.records[1].lookup == "restarted"

    run(scenario())


def test_a_handle_ttl_beyond_decodes_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    def long(settings: Settings) -> Settings:
        return dataclasses.replace(settings, handle_ttl_s=450)

    async def scenario() -> None:
        async with running(change=long) as stack:
            stack.decode.pages["/metrics"] = INFO % (60, "d-0")
            stack.router.watch._asked.clear()
            await stack.router.watch.look()

    run(scenario())
    assert "handle_ttl_s is 450, but decode engine" in caplog.text
    assert "set handle_ttl_s below 55" in caplog.text


def test_a_restarted_engine_serves_at_once() -> None:
    """No look at its health and no waiting for its breaker comes first."""

    async def scenario() -> None:
        async with running() as stack:
            for engine in (stack.prefill, stack.decode):
                await engine.stop()
                for n in range(8):
                    assert (await stack.chat("hi", conversation=f"{engine.role}-{n}")).status == 502
                await engine.start()
                assert (await stack.chat("hi")).status == 200

    run(scenario())


@pytest.mark.parametrize(("enabled", "local"), [("True", 30), ("False", 0)])
def test_a_prefill_without_a_prefix_cache_has_read_all_that_it_did_not_compute(enabled: str, local: int) -> None:
    page = f'vllm:cache_config_info{{block_size="16",enable_prefix_caching="{enabled}",engine="0"}} 1.0\n'

    async def scenario() -> None:
        async with running() as stack:
            stack.prefill.pages["/metrics"] = page
            stack.router.watch._asked.clear()
            await stack.router.watch.look()
            await stack.chat("hi")
            stack.prefill.cached = 30
            await stack.chat("hi", "Hello there", "more")
            assert (stack.records[1].local_tokens, stack.records[1].remote_tokens) == (local, 30 - local)

    run(scenario())


def test_an_open_breaker_spares_a_failing_engine() -> None:
    async def scenario() -> None:
        async with running(prefills=2) as stack:
            stack.prefills[0].acts.extend([Act(status=500)] * 40)
            for n in range(30):
                assert (await stack.chat("hi", conversation=f"c{n}")).status == 200
            failed = len(stack.prefills[0].turns)
            assert 5 <= failed <= 6
            await until(lambda: len(stack.records) == 30)

    run(scenario())
