from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest
from tests.router.harness import FakeEngine, run, running

from kvdiag.errors import InputError
from kvdiag.router.discovery import Discovery

if TYPE_CHECKING:
    from pathlib import Path


def names(discovery: Discovery) -> list[str]:
    return [address.name for address in asyncio.run(discovery.engines("decode"))]


def test_a_file_is_read_again_when_it_changes_and_kept_when_it_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "engines"
    file.write_text("# ours\nprefill http://p:1\ndecode http://d:1@0-1  # two ranks\n")
    discovery = Discovery({"prefill": (), "decode": ("http://s:1",)}, file)
    discovery.read()
    assert names(discovery) == ["s:1", "d:1@0", "d:1@1"]
    file.write_text("decode http://d:2\n")
    discovery.read()
    assert names(discovery) == ["s:1", "d:2"]
    file.write_text("decode nonsense\n")
    with pytest.raises(InputError, match="engines:1: engine 'nonsense' is not a URL"):
        discovery.read()
    os.unlink(file)  # noqa: PTH108 - as another process would
    with pytest.raises(InputError, match=r"engines: No such file"):
        discovery.read()
    assert names(discovery) == ["s:1", "d:2"]


@pytest.mark.parametrize("line", ["decode", "decoder http://d:1", "decode http://d:1 http://d:2"])
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "engines"
    file.write_text(f"\n{line}\n")
    with pytest.raises(InputError, match=r"engines:2: write `prefill URL` or `decode URL`"):
        Discovery({"prefill": (), "decode": ()}, file).read()


def test_a_name_stands_for_every_address_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [["10.0.0.2", "10.0.0.1", "10.0.0.1"], OSError("down"), ["10.0.0.3"]]

    async def resolve(_: object, host: str, port: int, **__: object) -> list[Any]:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        assert host == "decode.svc"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answer]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
    discovery = Discovery({"prefill": (), "decode": ("dns+http://decode.svc:8000",)}, None)
    assert names(discovery) == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert names(discovery) == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert names(discovery) == ["10.0.0.3:8000"]


def test_engines_come_and_go_while_serving(tmp_path: Path) -> None:
    file = tmp_path / "engines"

    async def scenario() -> None:
        async with running() as stack:
            other = FakeEngine("decode", "d-new")
            await other.start()
            await stack.chat("hi")
            discovery = Discovery({"prefill": (stack.prefill.url,), "decode": ()}, file)
            stack.router.watch._discovery = discovery
            file.write_text(f"decode {other.url}\n")
            await stack.router.watch.discover()
            await stack.chat("hi", "Hello there", "more")
            assert (len(stack.decode.turns), len(other.turns)) == (1, 1)
            await other.stop()

    run(scenario())
