from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import shutil
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.router.harness import run, running, until

from kvdiag.errors import InputError
from kvdiag.router.redis import RedisStore, Server
from kvdiag.router.stores import CLAIMED, Entry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvdiag.router.settings import Settings


class RedisServer:
    """A real redis-server."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        assert program, "install redis-server (apt-get install redis-server): the shared store is tested on a real one"
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self._command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        for _ in range(400):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.1):
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.025)
        raise AssertionError("redis-server did not start")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self, *, on: bool) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP if on else signal.SIGCONT)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


class Up:
    """What the store said of itself."""

    def __init__(self) -> None:
        self.now: int | None = None

    def __call__(self, up: int) -> None:
        self.now = up


ENTRY = Entry(turn=3, conversation="abc", state="issued", handle=b'{"a":1}', context=b"{}", tokens=48, ended_at=12.5)


def test_an_entry_is_claimed_by_exactly_one_of_many(server: RedisServer) -> None:
    async def scenario() -> None:
        stores = [RedisStore(server.url, ttl_s=60, timeout_s=0.25, on_up=Up()) for _ in range(2)]
        await asyncio.gather(*(store.ready() for store in stores))
        kept = stores[0].put(b"k", ENTRY)
        assert kept is not None
        await kept
        found = await asyncio.gather(*(stores[n % 2].claim(b"k") for n in range(10)))
        assert found.count(ENTRY) == 1
        assert found.count(CLAIMED) == 9
        dropped = stores[1].drop(b"k")
        assert dropped is not None
        await dropped
        assert await stores[0].claim(b"k") is None
        for store in stores:
            await store.close()

    run(scenario())


def test_entries_expire_and_strangers_values_are_ignored(server: RedisServer) -> None:
    async def scenario() -> None:
        store = RedisStore(server.url, ttl_s=1, timeout_s=0.25, on_up=Up())
        await store.ready()
        link = await Server.parse(server.url).connect(0.25)
        await link.send(b"SET", b"kvdiag:handle:1:odd", b"not msgpack")
        assert await store.claim(b"odd") is None
        store.put(b"k", ENTRY)
        left = await link.send(b"PTTL", b"kvdiag:handle:1:k")
        assert isinstance(left, int)
        assert 0 < left <= 1000
        link.close()
        await store.close()

    run(scenario())


@pytest.mark.parametrize("url", ["http://x", "redis://", "redis://h/db", "nonsense"])
def test_a_useless_url_is_named(url: str) -> None:
    with pytest.raises(InputError, match="redis://HOST"):
        Server.parse(url)


@pytest.mark.parametrize(
    "url",
    ["redis://me:hunter2@h/x", "redis://me:hunter2@h:99999/0", "redis://me:a/hunter2@h/0", "redis://:hunter2@[h/0"],
)
def test_a_url_in_an_error_hides_its_password(url: str) -> None:
    with pytest.raises(InputError) as caught:
        Server.parse(url)
    assert "hunter2" not in str(caught.value)


def test_a_password_is_in_no_log(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def scenario() -> None:
        url = server.url.replace("//", "//me:hunter2@")
        store = RedisStore(url, ttl_s=9, timeout_s=1, on_up=lambda _: None)
        await store.ready()
        await store.close()

    run(scenario())
    assert "serving without reuse" in caplog.text
    assert "hunter2" not in caplog.text


def shared(server: RedisServer, settings: Settings) -> Settings:
    store = dataclasses.replace(settings.store, kind="redis", url=server.url)
    return dataclasses.replace(settings, store=store, hash_key="same everywhere")


def test_replicas_alternate_turns_of_one_conversation_and_a_new_one_goes_on(server: RedisServer) -> None:
    async def scenario() -> None:
        async with running(change=lambda s: shared(server, s)) as one:
            here = dataclasses.replace(one.router.settings, prefill=(one.prefill.url,), decode=(one.decode.url,))
            async with running(change=lambda _: here) as two:
                assert one.sample("kvdiag_router_store_up") == two.sample("kvdiag_router_store_up") == 1
                history = ["hi"]
                for stack in (one, two, one, two):
                    assert (await stack.chat(*history, stream=True)).status == 200
                    history += ["Hello there", "more"]
                seen = [(r.lookup, r.turn) for r in (one.records[0], two.records[0], one.records[1], two.records[1])]
                assert seen == [("first_turn", 1), ("hit", 2), ("hit", 3), ("hit", 4)]
            async with running(change=lambda _: here) as fresh:
                await fresh.chat(*history)
                assert (fresh.records[0].lookup, fresh.records[0].turn) == ("hit", 5)

    run(scenario())


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_serving_goes_on_without_the_server_and_reuse_comes_back(server: RedisServer, fault: str) -> None:
    async def scenario() -> None:
        async with running(change=lambda s: shared(server, s)) as stack:
            await stack.chat("hi")
            server.kill() if fault == "kill" else server.freeze(on=True)
            assert (await stack.chat("hi", "Hello there", "more")).status == 200
            await until(lambda: stack.sample("kvdiag_router_store_up") == 0)
            assert stack.records[1].lookup == "router_lost_state"
            server.start() if fault == "kill" else server.freeze(on=False)
            await until(lambda: stack.sample("kvdiag_router_store_up") == 1)
            await stack.chat("hi", conversation="new")
            await stack.chat("hi", "Hello there", "more", conversation="new")
            assert stack.records[3].lookup == "hit"

    run(scenario())


def test_an_outage_and_its_end_are_logged_once_each(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        server.kill()
        up = Up()
        store = RedisStore(server.url, ttl_s=60, timeout_s=0.25, on_up=up)
        await store.ready()
        await asyncio.sleep(0.5)
        server.start()
        await until(lambda: bool(up.now))
        await store.close()

    with caplog.at_level("INFO", "kvdiag.router"):
        run(scenario())
    lines = [record.message for record in caplog.records if record.message.startswith("handle store")]
    assert len(lines) == 2
    assert "serving without reuse" in lines[0]
    assert lines[1] == "handle store: connected"
