from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.router.harness import Client as HttpClient
from tests.router.harness import FakeEngine, Reply, post, run
from tests.router.test_redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


def kvdiag(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvdiag", "router", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environment}
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no prefill engine given; add --prefill http://HOST:PORT"),
        (("--prefill", "http://p:1"), "no decode engine given"),
        (("--prefill", "p", "--decode", "d"), "engine 'p' is not a URL such as"),
        (("--config", "nowhere.toml"), "configuration nowhere.toml: No such file or directory"),
        (("--prefill", "http://p:1", "--decode", "http://d:1", "--store", "redis"), "needs hash_key"),
        (
            ("--prefill", "http://p:1", "--decode", "http://d:1", "--turn-log", "/dev/null/turns", "--check"),
            "turn_log /dev/null/turns: its folder is missing or cannot be written",
        ),
    ],
)
def test_mistakes_end_with_one_line_and_code_2(arguments: tuple[str, ...], message: str) -> None:
    done = kvdiag(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_settings_can_be_checked_without_serving(tmp_path: Path) -> None:
    file = tmp_path / "router.toml"
    file.write_text('prefill = ["http://p:1"]\ndecode = ["http://d:1"]\n')
    done = kvdiag("--config", str(file), "--check", KVDIAG_ROUTER__PORT="9")
    assert (done.returncode, done.stdout) == (0, "settings are usable\n")


@contextlib.asynccontextmanager
async def replica(store: RedisServer, prefill: FakeEngine, decode: FakeEngine) -> AsyncIterator[tuple[int, int]]:
    """Start a router process; give its port and pid."""
    engines = ["--prefill", prefill.url, "--decode", decode.url, "--port", "0"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvdiag", "router", *engines, "--store", "redis", "--store-url", store.url),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "KVDIAG_ROUTER__HASH_KEY": "shared"},
    )
    assert process.stderr is not None
    try:
        while (found := re.search(rb"listening on 127.0.0.1:(\d+)", await process.stderr.readline())) is None:
            assert process.returncode is None
        yield int(found[1]), process.pid
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.communicate()


async def chat(port: int, *contents: str) -> Reply:
    messages = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(contents)]
    client = HttpClient(*await asyncio.open_connection("127.0.0.1", port))
    await client.send(post("/v1/chat/completions", {"model": "m", "messages": messages}, x_session_id="a"))
    reply = await client.reply()
    client.close()
    return reply


def test_a_killed_replica_takes_no_handle_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        prefill, decode = FakeEngine("prefill", "p"), FakeEngine("decode", "d")
        await prefill.start()
        await decode.start()
        async with replica(store, prefill, decode) as (port, pid):
            assert (await chat(port, "hi")).status == 200
            os.kill(pid, signal.SIGKILL)
        async with replica(store, prefill, decode) as (port, _):
            assert (await chat(port, "hi", "Hello there", "more")).status == 200
        assert prefill.turns[1].params["remote_request_id"] == "decode-1"
        assert prefill.turns[1].params["kvdiag"]["turn"] == 2
        await prefill.stop()
        await decode.stop()

    store = RedisServer(tmp_path)
    store.start()
    try:
        run(scenario())
    finally:
        store.kill()
