from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest
from tests.router.harness import Act, FakeEngine, Json, post, run, running, until


@pytest.mark.parametrize("stream", [False, True])
def test_the_second_turn_carries_decodes_handle_to_prefill(*, stream: bool) -> None:
    async def scenario() -> None:
        async with running() as stack:
            await stack.chat("hi", stream=stream)
            await stack.chat("hi", "Hello there", "and?", stream=stream)
            first, second = (seen.params for seen in stack.prefill.turns)
            assert first["do_remote_decode"] is True
            assert "remote_engine_id" not in first
            assert second["remote_request_id"] == "decode-1"
            assert second["remote_num_tokens"] == 48
            assert second["remote_blocks_expiry_time"] == 1234.5
            assert (second["do_remote_decode"], second["do_remote_prefill"]) == (True, False)
            assert [r.lookup for r in stack.records] == ["first_turn", "hit"]
            assert [r.turn for r in stack.records] == [1, 2]
            assert stack.sample("kvdiag_router_lookups_total", result="hit") == 1

    run(scenario())


def test_both_calls_of_a_turn_are_shaped_for_their_role() -> None:
    async def scenario() -> None:
        async with running() as stack:
            reply = await stack.chat(
                "hi", stream=True, max_completion_tokens=99, stream_options={"include_usage": True}
            )
            prefill, decode = stack.prefill.turns[0], stack.decode.turns[0]
            assert prefill.body["stream"] is False
            assert (prefill.body["max_tokens"], prefill.body["max_completion_tokens"]) == (1, 1)
            assert "stream_options" not in prefill.body
            assert decode.body["stream"] is True
            assert decode.body["max_completion_tokens"] == 99
            assert decode.params["remote_request_id"] == "prefill-1"
            assert decode.params["do_remote_prefill"] is True
            assert prefill.headers["x-request-id"] == decode.headers["x-request-id"] == reply.headers["x-request-id"]
            for call in (prefill, decode):
                assert call.params["kvdiag"]["v"] == 1
                assert call.params["kvdiag"]["lookup"] == "first_turn"

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_clients_neither_see_nor_set_transfer_params(*, stream: bool) -> None:
    async def scenario() -> None:
        async with running() as stack:
            stack.prefill.outcome = {"cause": "local_hit"}
            reply = await stack.chat("hi", stream=stream, kv_transfer_params={"remote_engine_id": "stolen"})
            assert reply.text == "Hello there"
            for word in (b"kv_transfer_params", b"kvdiag", b"remote_", b"10.0.0.9"):
                assert word not in reply.body
            assert "stolen" not in json.dumps(stack.prefill.turns[0].body)

    run(scenario())


def test_transfer_params_can_be_exposed_by_configuration() -> None:
    async def scenario() -> None:
        async with running(change=lambda s: dataclasses.replace(s, expose_kv_params=True)) as stack:
            assert b"kv_transfer_params" in (await stack.chat("hi")).body
            assert b"kv_transfer_params" in (await stack.chat("hi", stream=True)).body

    run(scenario())


@pytest.mark.parametrize(
    ("outcome", "cause", "detail"),
    [
        ({"cause": "remote_hit", "prompt_tokens": 100, "local_tokens": 10, "remote_tokens": 80}, "remote_hit", None),
        ({"cause": "prefix_diverged", "detail": "in_response"}, "prefix_diverged", "in_response"),
        ({"cause": 7}, "unexplained", None),
        ({"cause": "made_up"}, "unexplained", None),
        ({"cause": "remote_hit", "detail": "made up"}, "unexplained", None),
    ],
)
def test_prefills_connector_explains_a_turn_with_a_handle(
    outcome: dict[str, str | int], cause: str, detail: str | None
) -> None:
    async def scenario() -> None:
        async with running() as stack:
            await stack.chat("hi")
            stack.prefill.outcome = dict(outcome)
            await stack.chat("hi", "Hello there", "more")
            record = stack.records[1]
            assert (record.cause, record.detail) == (cause, detail)
            if outcome.get("remote_tokens"):
                assert (record.local_tokens, record.remote_tokens, record.computed_tokens) == (10, 80, 10)

    run(scenario())


@pytest.mark.parametrize(
    ("cached", "cause"), [(45, "remote_hit"), (32, "local_hit"), (0, "unexplained"), (None, "unexplained")]
)
def test_stock_connectors_are_judged_by_what_prefill_cannot_have_computed(cached: int | None, cause: str) -> None:
    async def scenario() -> None:
        async with running() as stack:
            await stack.chat("hi")
            stack.prefill.cached = cached
            await stack.chat("hi", "Hello there", "more")
            assert stack.records[1].cause == cause

    run(scenario())


def test_a_fork_of_a_conversation_does_not_read_the_handle_twice() -> None:
    async def scenario() -> None:
        async with running() as stack:
            await stack.chat("hi")
            stack.decode.acts.extend([Act(pace_s=0.02), Act(pace_s=0.02)])
            await asyncio.gather(*(stack.chat("hi", "Hello there", tail, stream=True) for tail in ("a", "b")))
            handles = [seen.params.get("remote_request_id") for seen in stack.prefill.turns[1:]]
            assert sorted(handles, key=str) == [None, "decode-1"]
            assert sorted(str(r.lookup) for r in stack.records[1:]) == ["consumed", "hit"]

    run(scenario())


def test_tenants_do_not_share_conversations() -> None:
    async def scenario() -> None:
        async with running() as stack:
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            for key in ("Bearer a", "Bearer b", "Bearer a"):
                await stack.post("/v1/chat/completions", body, x_conversation_id="same", authorization=key)
            assert [r.lookup for r in stack.records] == ["first_turn", "first_turn", "hit"]
            assert stack.prefill.turns[0].headers["authorization"] == "Bearer a"

    run(scenario())


def test_an_edited_history_is_not_read_back_on_stock_engines() -> None:
    async def scenario() -> None:
        async with running() as stack:
            await stack.chat("hi")
            await stack.chat("hi, edited", "Hello there", "more")
            assert stack.records[1].lookup == "in_history"
            assert (stack.records[1].cause, stack.records[1].detail) == ("prefix_diverged", "in_history")
            assert "remote_engine_id" not in stack.prefill.turns[1].params

    run(scenario())


def test_an_edited_history_is_left_to_connectors_that_compare_tokens() -> None:
    async def scenario() -> None:
        async with running() as stack:
            stack.decode.ttl_context = True
            await stack.chat("hi")
            await stack.chat("hi, edited", "Hello there", "more")
            params = stack.prefill.turns[1].params
            assert params["remote_request_id"] == "decode-1"
            assert params["kvdiag"]["prefix"] == "p" * 8
            assert params["kvdiag"]["lookup"] == "hit"

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_unnamed_conversations_are_recognised_by_their_history(*, stream: bool) -> None:
    async def scenario() -> None:
        async with running() as stack:
            history = ["hi"]
            for more in ("second", "third"):
                reply = await stack.chat(*history, conversation=None, stream=stream)
                history += [reply.text, more]
            await stack.chat(*history, conversation=None, stream=stream)
            assert [r.lookup for r in stack.records] == ["first_turn", "hit", "hit"]
            assert [r.turn for r in stack.records] == [1, 2, 3]
            assert len({r.conversation for r in stack.records}) == 1

    run(scenario())


def test_parallel_branches_of_an_unnamed_conversation_stay_apart() -> None:
    async def scenario() -> None:
        async with running() as stack:
            answers = []
            for text in ("one answer", "another answer"):
                stack.decode.text = text
                answers.append((await stack.chat("hi", conversation=None)).text)
            for answer in answers:
                await stack.chat("hi", answer, "go on", conversation=None)
            assert [seen.params["remote_request_id"] for seen in stack.prefill.turns[2:]] == ["decode-1", "decode-2"]
            assert len({r.conversation for r in stack.records[:2]}) == 2
            assert [r.conversation for r in stack.records[:2]] == [r.conversation for r in stack.records[2:]]

    run(scenario())


def test_unnamed_conversations_are_not_linked_where_that_is_off() -> None:
    async def scenario() -> None:
        async with running(change=lambda s: dataclasses.replace(s, derive_conversations=False)) as stack:
            await stack.chat("hi", conversation=None)
            await stack.chat("hi", "Hello there", "more", conversation=None)
            assert [r.lookup for r in stack.records] == ["first_turn", "no_conversation_id"]

    run(scenario())


def test_an_unknown_conversation_with_a_history_is_lost_state() -> None:
    async def scenario() -> None:
        async with running() as stack:
            await stack.chat("hi", "Hello there", "more")
            record = stack.records[0]
            assert (record.lookup, record.cause, record.turn) == ("router_lost_state", "missing_metadata", 2)

    run(scenario())


@pytest.mark.parametrize(
    ("prepare", "lookup"),
    [
        (lambda stack: setattr(stack.decode, "returns_handle", False), "not_returned"),
        (
            lambda stack: stack.decode.acts.append(Act(body={"choices": [], "kv_transfer_params": {"a": 1}})),
            "incomplete",
        ),
    ],
)
def test_a_missing_or_useless_handle_is_named(prepare: object, lookup: str) -> None:
    async def scenario() -> None:
        async with running() as stack:
            assert callable(prepare)
            prepare(stack)
            await stack.chat("hi")
            await stack.chat("hi", "Hello there", "more")
            assert stack.records[1].lookup == lookup

    run(scenario())


@pytest.mark.parametrize(
    ("role", "cause", "detail"),
    [("prefill", "feature_off", "no_connector"), ("decode", "missing_metadata", "not_returned")],
)
def test_a_handle_that_decode_does_not_return_is_told_from_a_prefill_that_hands_over_nothing(
    role: str, cause: str, detail: str
) -> None:
    async def scenario() -> None:
        async with running() as stack:
            for engine in (stack.decode, getattr(stack, role)):
                engine.returns_handle = False
            await stack.chat("hi")
            await stack.chat("hi", "Hello there", "more")
            assert (stack.records[1].cause, stack.records[1].detail) == (cause, detail)

    run(scenario())


def test_a_handle_past_its_ttl_is_not_sent() -> None:
    async def scenario() -> None:
        async with running(change=lambda s: dataclasses.replace(s, handle_ttl_s=0.0)) as stack:
            await stack.chat("hi")
            await stack.chat("hi", "Hello there", "more")
            assert (stack.records[1].lookup, stack.records[1].turn) == ("stale", 2)

    run(scenario())


def test_handles_of_a_restarted_engine_are_void() -> None:
    async def scenario() -> None:
        async with running() as stack:
            await stack.chat("hi", conversation="old")
            stack.decode.engine_id = "engine-2"
            await stack.chat("hi", conversation="new")
            await stack.chat("hi", "Hello there", "more", conversation="old")
            record = stack.records[2]
            assert (record.lookup, record.cause, record.detail) == ("restarted", "peer_unreachable", "restarted")

    run(scenario())


def test_a_client_that_leaves_cancels_the_engines_work_at_once() -> None:
    async def scenario() -> None:
        async with running() as stack:
            stack.decode.acts.append(Act(hang_after=2))
            client = await stack.connect()
            await client.send(post("/v1/chat/completions", {"model": "m", "messages": [], "stream": True}))
            await client.read_head()
            client.close()
            await until(lambda: bool(stack.decode.aborted))
            assert (stack.records[0].cause, stack.records[0].detail) == ("client", "aborted")

    run(scenario())


def test_a_client_that_leaves_with_the_whole_answer_has_not_aborted_it() -> None:
    async def scenario() -> None:
        async with running() as stack:
            events = [b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n", b": an end that comes late\n\n"]
            stack.decode.acts.append(Act(events=events, hang_after=2))
            client = await stack.connect()
            await client.send(post("/v1/chat/completions", {"model": "m", "messages": [], "stream": True}))
            await client.reader.readuntil(b"[DONE]")
            client.close()
            await until(lambda: bool(stack.records))
            assert (stack.records[0].status, stack.records[0].cause) == (200, "first_turn")

    run(scenario())


def test_a_client_that_leaves_during_prefill_cancels_it() -> None:
    async def scenario() -> None:
        async with running() as stack:
            stack.prefill.acts.append(Act(hang=True))
            client = await stack.connect()
            await client.send(post("/v1/chat/completions", {"model": "m", "messages": []}))
            await until(lambda: bool(stack.prefill.turns))
            client.close()
            await until(lambda: bool(stack.prefill.aborted))

    run(scenario())


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_an_engines_refusal_reaches_the_client_without_internals(role: str) -> None:
    async def scenario() -> None:
        async with running() as stack:
            engine: FakeEngine = getattr(stack, role)
            engine.acts.append(Act(status=429, headers=(("retry-after", "7"),)))
            reply = await stack.chat("hi", stream=True)
            assert reply.status == 429
            assert reply.headers["retry-after"] == "7"
            assert reply.json()["error"]["message"] == "engine says no"
            assert b"secret" not in reply.body
            record = stack.records[0]
            assert (record.status, record.cause, record.detail) == (429, "client", "refused")

    run(scenario())


@pytest.mark.parametrize(
    "extra", [{"n": 2}, {"best_of": 3}, {"use_beam_search": True}, {"n": 1.0}, {"background": True}]
)
def test_requests_that_cannot_carry_a_handle_go_to_decode_alone(extra: Json) -> None:
    async def scenario() -> None:
        async with running() as stack:
            assert (await stack.chat("hi", **extra)).status == 200
            assert not stack.prefill.turns
            assert "kv_transfer_params" not in stack.decode.turns[0].body
            assert stack.sample("kvdiag_router_lookups_total", result="unsupported") == 1

    run(scenario())


def test_decode_is_sticky() -> None:
    async def scenario() -> None:
        async with running(decodes=3) as stack:
            await asyncio.gather(*(stack.chat("hi", conversation=f"c{n}") for n in range(6)))
            for n in range(6):
                await stack.chat("hi", "Hello there", "more", conversation=f"c{n}")
            by_conversation: dict[str | None, set[str | None]] = {}
            for record in stack.records:
                by_conversation.setdefault(record.conversation, set()).add(record.decode)
            assert all(len(engines) == 1 for engines in by_conversation.values())
            assert len({record.decode for record in stack.records}) == 3

    run(scenario())


def test_held_out_conversations_never_reuse_and_are_counted_apart() -> None:
    async def scenario() -> None:
        async with running(change=lambda s: dataclasses.replace(s, holdout=1.0)) as stack:
            await stack.chat("hi", stream=True)
            await stack.chat("hi", "Hello there", "more", stream=True)
            assert "remote_engine_id" not in stack.prefill.turns[1].params
            assert stack.records[1].lookup == "holdout"
            count = stack.sample("kvdiag_turn_ttft_seconds_count", cause="missing_metadata", turn="2-4", arm="holdout")
            assert count == 1

    run(scenario())


def test_many_concurrent_turns_never_mix_their_answers() -> None:
    async def scenario() -> None:
        async with running() as stack:

            async def talk(n: int) -> None:
                reply = await stack.chat(f"hi {n}", stream=bool(n % 2), conversation=f"c{n}")
                assert reply.text == "Hello there"
                reply = await stack.chat(f"hi {n}", "Hello there", "x", stream=bool(n % 3), conversation=f"c{n}")
                assert reply.text == "Hello there"

            await asyncio.gather(*(talk(n) for n in range(64)))
            assert sorted(str(r.lookup) for r in stack.records) == ["first_turn"] * 64 + ["hit"] * 64
            prompts = {seen.params["remote_request_id"] for seen in stack.decode.turns}
            assert len(prompts) == 128

    run(scenario())


def test_trace_context_goes_through() -> None:
    async def scenario() -> None:
        async with running() as stack:
            parent = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            await stack.post("/v1/chat/completions", body, traceparent=parent, tracestate="a=b")
            for engine in (stack.prefill, stack.decode):
                assert engine.turns[0].headers["traceparent"] == parent
                assert engine.turns[0].headers["tracestate"] == "a=b"
                assert engine.turns[0].params["kvdiag"]["traceparent"] == parent

    run(scenario())


def test_a_response_continues_on_the_engine_that_keeps_it() -> None:
    async def scenario() -> None:
        async with running(decodes=3) as stack:
            answer = {"id": "resp_1", "object": "response", "output": []}
            for engine in stack.decodes:
                engine.acts.append(Act(body=answer))
            await stack.post("/v1/responses", {"model": "m", "input": "hi"})
            first = stack.records[0].decode
            assert stack.prefill.turns[0].body["max_output_tokens"] == 1
            assert stack.prefill.turns[0].body["store"] is False
            await stack.post("/v1/responses", {"model": "m", "input": "more", "previous_response_id": "resp_1"})
            assert stack.records[1].decode == first
            assert len(stack.prefill.turns) == 1

    run(scenario())


def test_tokens_held_but_not_reused_are_lost() -> None:
    async def scenario() -> None:
        async with running(change=lambda s: dataclasses.replace(s, handle_ttl_s=0.0)) as stack:
            await stack.chat("hi")
            stack.prefill.cached = 16
            await stack.chat("hi", "Hello there", "more")
            record = stack.records[1]
            assert (record.local_tokens, record.remote_tokens, record.computed_tokens) == (16, 0, 24)
            assert record.lost_tokens == 24

    run(scenario())


def test_a_mistake_of_ours_costs_one_request(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running() as stack:
            monkeypatch.setattr(stack.router.services.identifier, "identify", lambda *_: 1 / 0)
            reply = await stack.chat("hi")
            assert (reply.status, reply.json()["error"]["code"]) == (500, 500)
            monkeypatch.undo()
            assert (await stack.chat("hi")).status == 200

    run(scenario())
    assert "ZeroDivisionError" in caplog.text


def test_telemetry_that_fails_fails_no_turn(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running() as stack:
            monkeypatch.setattr(stack.router.metrics, "turn", lambda *_, **__: 1 / 0)
            assert (await stack.chat("hi")).text == "Hello there"
            assert stack.sample("kvdiag_dropped_events_total", sink="queue") == 1

    run(scenario())
    assert "could not be recorded" in caplog.text
