"""What a turn does where an engine fails: once more without the handle, on another engine, or a clean end."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest
from tests.router.harness import Act, run, running

if TYPE_CHECKING:
    from kvdiag.router.settings import Settings


def short(settings: Settings) -> Settings:
    deadlines = dataclasses.replace(
        settings.deadlines, reuse_s=0.2, prefill_s=0.3, first_byte_s=0.3, stall_s=0.2, connect_s=0.5
    )
    return dataclasses.replace(settings, deadlines=deadlines)


@pytest.mark.parametrize("act", [Act(status=500), Act(hang=True), Act(drop=True)])
def test_prefill_that_fails_with_a_handle_is_asked_once_more_without(act: Act) -> None:
    async def scenario() -> None:
        async with running(change=short) as stack:
            await stack.chat("hi")
            stack.prefill.acts.append(act)
            reply = await stack.chat("hi", "Hello there", "more")
            assert reply.status == 200
            with_handle, without = stack.prefill.turns[1:]
            assert "remote_engine_id" in with_handle.params
            assert "remote_engine_id" not in without.params
            assert without.params["kvdiag"]["lookup"] == "consumed"
            assert (stack.records[1].retries, stack.records[1].cause) == (1, "upstream_error")
            reason = "prefill_timeout" if act.hang else "prefill_error"
            assert stack.sample("kvdiag_router_retries_total", reason=reason) == 1

    run(scenario())


def test_a_read_that_stock_prefill_declined_is_named_expired() -> None:
    def careless(settings: Settings) -> Settings:
        return dataclasses.replace(short(settings), handle_ttl_s=3600, decode_ttl_s=5)

    async def scenario() -> None:
        async with running(change=careless) as stack:
            await stack.chat("hi")
            stack.prefill.acts.append(Act(status=500))
            assert (await stack.chat("hi", "Hello there", "more")).status == 200
            assert (stack.records[1].cause, stack.records[1].detail) == ("expired_remote_read", "failed_request")

    run(scenario())


def test_a_failed_handle_does_not_open_prefills_breaker() -> None:
    async def scenario() -> None:
        async with running(change=short) as stack:
            for n in range(6):
                await stack.chat("hi", conversation=f"c{n}")
            for n in range(6):
                stack.prefill.acts.append(Act(status=500))
                reply = await stack.chat("hi", "Hello there", "more", conversation=f"c{n}")
                assert reply.status == 200

    run(scenario())


@pytest.mark.parametrize("act", [Act(status=503), Act(drop=True), None])
def test_another_prefill_takes_over(act: Act | None) -> None:
    async def scenario() -> None:
        async with running(prefills=2, change=short) as stack:
            if act is None:
                await stack.prefills[0].stop()
            else:
                stack.prefills[0].acts.append(act)
            assert (await stack.chat("hi")).status == 200
            assert len(stack.prefills[1].turns) == 1
            assert stack.records[0].retries == 1

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("act", [Act(status=500), Act(drop=True), Act(hang=True), None])
def test_another_decode_takes_over_before_the_first_byte(act: Act | None, *, stream: bool) -> None:
    async def scenario() -> None:
        def brief(settings: Settings) -> Settings:
            settings = short(settings)
            return dataclasses.replace(settings, deadlines=dataclasses.replace(settings.deadlines, answer_s=0.3))

        async with running(decodes=2, change=brief) as stack:
            if act is None:
                await stack.decodes[0].stop()
            else:
                stack.decodes[0].acts.append(act)
            reply = await stack.chat("hi", stream=stream)
            assert (reply.status, reply.text) == (200, "Hello there")
            # An engine that was reached may have read prefill's blocks: only then prefill runs anew.
            assert len(stack.prefill.turns) == (1 if act is None else 2)
            assert stack.records[0].decode == f"127.0.0.1:{stack.decodes[1].port}"

    run(scenario())


@pytest.mark.parametrize("act", [Act(drop_after=2), Act(hang_after=2)])
def test_a_stream_that_breaks_off_ends_with_an_error_event(act: Act) -> None:
    async def scenario() -> None:
        async with running(change=short) as stack:
            stack.decode.acts.append(act)
            reply = await stack.chat("hi", stream=True)
            assert reply.status == 200
            last, done = reply.body.decode().strip().split("\n\n")[-2:]
            assert json.loads(last[6:])["error"]["code"] == 502
            assert done == "data: [DONE]"
            assert stack.records[0].cause == "upstream_error"

    run(scenario())


def test_an_unanswered_turn_leaves_the_conversation_where_it_stood() -> None:
    async def scenario() -> None:
        async with running(change=short) as stack:
            await stack.chat("hi")
            await stack.prefill.stop()
            assert (await stack.chat("hi", "Hello there", "more")).status == 502
            await stack.prefill.start()
            stack.router.services.prefills.engines[0].succeeded()
            await stack.chat("hi", "Hello there", "more")
            assert [r.lookup for r in stack.records] == ["first_turn", "hit", "hit"]

    run(scenario())
