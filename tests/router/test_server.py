from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from tests.router.harness import Act, post, run, running, until

from kvdiag.errors import InputError
from kvdiag.router.server import Router

if TYPE_CHECKING:
    from pathlib import Path

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def test_probes_tell_living_from_ready() -> None:
    async def scenario() -> None:
        async with running() as stack:
            assert (await stack.get("/health")).status == 200
            assert (await stack.get("/livez")).status == 200
            assert (await stack.get("/readyz")).status == 200
            await stack.decode.stop()
            await stack.router.watch.look()
            assert (await stack.get("/livez")).status == 200
            assert (await stack.get("/readyz")).status == 503

    run(scenario())


def test_metrics_are_served_in_both_formats_from_a_thread() -> None:
    threads = []

    class Recording:
        def collect(self) -> list[object]:
            threads.append(threading.current_thread())
            return []

    async def scenario() -> None:
        async with running() as stack:
            await stack.chat("hi", stream=True)
            stack.router.registry.register(Recording())  # type: ignore[arg-type]
            page = (await stack.get("/metrics")).body.decode()
            assert 'kvdiag_router_lookups_total{result="first_turn"} 1.0' in page
            assert "kvdiag_router_handles 1.0" in page
            reply = await stack.get("/metrics", accept="application/openmetrics-text; version=1.0.0")
            assert reply.headers["content-type"].startswith("application/openmetrics-text")
            assert reply.body.rstrip().endswith(b"# EOF")
            assert threading.main_thread() not in threads[1:]

    run(scenario())


def test_model_lists_and_tokenizers_pass_through() -> None:
    async def scenario() -> None:
        async with running() as stack:
            stack.decode.pages["/v1/models"] = '{"object":"list","data":[]}'
            reply = await stack.get("/v1/models", authorization="Bearer x", cookie="secret")
            assert reply.json() == {"object": "list", "data": []}
            assert stack.decode.seen[-1].headers["authorization"] == "Bearer x"
            assert "cookie" not in stack.decode.seen[-1].headers
            stack.decode.acts.append(Act(body={"tokens": [1]}))
            assert (await stack.post("/tokenize", {"prompt": "a"})).json() == {"tokens": [1]}

    run(scenario())


def test_a_stored_response_is_looked_for_on_every_decode_engine() -> None:
    async def scenario() -> None:
        async with running(decodes=3) as stack:
            for engine in stack.decodes:
                engine.pages["/v1/responses/resp_1"] = ""
            stack.decodes[1].pages["/v1/responses/resp_1"] = '{"id":"resp_1"}'
            assert (await stack.get("/v1/responses/resp_1")).json() == {"id": "resp_1"}
            assert (await stack.get("/v1/responses/other")).status == 200

    run(scenario())


def test_pass_through_without_engines_is_an_error_of_ours() -> None:
    async def scenario() -> None:
        async with running() as stack:
            await stack.decode.stop()
            reply = await stack.get("/v1/models")
            assert reply.status == 503
            assert b"127.0.0.1" not in reply.body

    run(scenario())


def test_load_beyond_the_limit_is_shed() -> None:
    async def scenario() -> None:
        async with running(change=lambda s: dataclasses.replace(s, max_in_flight=1)) as stack:
            stack.prefill.acts.append(Act(hang=True))
            client = await stack.connect()
            await client.send(post("/v1/chat/completions", CHAT))
            await until(lambda: bool(stack.prefill.turns))
            reply = await stack.post("/v1/chat/completions", CHAT)
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            client.close()
            await until(lambda: bool(stack.prefill.aborted))
            assert (await stack.post("/v1/chat/completions", CHAT)).status == 200

    run(scenario())


def test_draining_lets_streams_end_and_takes_nothing_new() -> None:
    async def scenario() -> None:
        async with running() as stack:
            stack.decode.acts.append(Act(pace_s=0.05))
            client, idle = await stack.connect(), await stack.connect()
            await client.send(post("/v1/chat/completions", {**CHAT, "stream": True}))
            await client.read_head()
            stack.stop.set()
            assert await idle.reader.read() == b""
            body = b""
            while part := await client.read_chunk():
                body += part
            assert body.endswith(b"data: [DONE]\n\n")
            assert await client.reader.read() == b""
            await stack.serving
            with pytest.raises(OSError, match=r".*"):
                await stack.connect()

    run(scenario())


def test_draining_does_not_wait_for_ever() -> None:
    async def scenario() -> None:
        async with running(
            change=lambda s: dataclasses.replace(s, deadlines=dataclasses.replace(s.deadlines, drain_s=0.1))
        ) as stack:
            stack.decode.acts.append(Act(hang_after=1))
            client = await stack.connect()
            await client.send(post("/v1/chat/completions", {**CHAT, "stream": True}))
            await client.read_head()
            stack.stop.set()
            await stack.serving
            assert stack.records[0].cause == "client"

    run(scenario())


def test_turns_are_logged_without_prompts_or_ids(tmp_path: Path) -> None:
    log = tmp_path / "turns.jsonl"

    async def scenario() -> None:
        async with running(change=lambda s: dataclasses.replace(s, turn_log=log)) as stack:
            await stack.chat("my secret prompt", conversation="my secret id", stream=True)

    run(scenario())
    text = log.read_text()
    record = json.loads(text)
    assert record["schema"] == "kvdiag.turn/1"
    assert record["cause"] == "first_turn"
    assert record["ts"].endswith("Z")
    assert 0 < record["prefill_s"] < record["ttft_s"] < record["total_s"]
    assert "secret" not in text


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_tells_what_the_router_itself_took(*, stream: bool) -> None:
    async def scenario() -> None:
        async with running() as stack:
            await stack.chat("hello", stream=stream)
            (record,) = stack.records
            assert record.router_s is not None
            assert record.prefill_s is not None
            until = record.ttft_s if stream else record.total_s
            assert until is not None
            assert 0 <= record.router_s < until - record.prefill_s

    run(scenario())


def test_a_full_disk_costs_records_and_nothing_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(change=lambda s: dataclasses.replace(s, turn_log=tmp_path)) as stack:
            assert (await stack.chat("hi")).status == 200
            await until(lambda: stack.sample("kvdiag_dropped_events_total", sink="jsonl") == 1)

    run(scenario())


def test_a_taken_port_is_named() -> None:
    async def scenario() -> None:
        async with running() as stack:
            with socket.create_server(("127.0.0.1", 0)) as taken:
                port = taken.getsockname()[1]
                router = Router(dataclasses.replace(stack.router.settings, port=port))
                with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1:{port}: .*choose another --port"):
                    await router.serve(asyncio.Event())

    run(scenario())


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "dns+http://localhost:1"])
def test_engines_can_be_absent_at_the_start(url: str) -> None:
    async def scenario() -> None:
        async with running(change=lambda s: dataclasses.replace(s, decode=(url,))) as stack:
            reply = await stack.chat("hi")
            assert reply.status in {502, 503}
            assert reply.json()["error"]["type"] == "server_error"

    run(scenario())
