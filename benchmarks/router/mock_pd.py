"""Mock prefill and decode engines in one process, fast enough to measure routers with.

Prefill answers JSON with `kv_transfer_params`; decode streams chunks, or answers JSON where `stream` is not true, with a
handle at the end, sized as NIXL's. `GET /_set?chunks=50&delay_ms=5` changes how they answer, `GET /_stats` counts. Each of
decode's handles is another one, so that prefill notices when it is sent one that it has read before (`twice`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import sys
from functools import cache
from itertools import count
from typing import Any, Literal, cast
from urllib.parse import parse_qsl, urlsplit

import httptools
import uvloop

Role = Literal["p", "d"]
Json = dict[str, Any]

SETTINGS: dict[str, float] = {
    "chunks": 50,  # content chunks of a stream
    "delay_ms": 5.0,  # between chunks; 0: one after the other, a write each
    "jitter": 0.6,  # relative width of the random part of delay_ms, so that streams do not fall into step
    "prefill_ms": 0.0,
    "first_ms": 0.0,  # decode's time to its first chunk
}
STATS = {"p": 0, "d": 0, "p_with_handle": 0, "twice": 0, "unread": 0, "aborted": 0}
UNREAD: set[bytes] = set()  # serial numbers of decode's handles
SERIALS = count(1)
SERIAL = b"@" * 8
BLOCK, BYTES_PER_TOKEN = 16, 4
ID = "chatcmpl-5f0c6a2e9d9a4c7e8b1d3f2a4c6e8f00"
REQUEST_ID = b'"remote_request_id":"%b-' % ID.encode()
HEAD_JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
HEAD_SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def params(blocks: int, role: Role) -> Json:
    prefill = role == "p"
    return {
        "do_remote_prefill": prefill,
        "do_remote_decode": not prefill,
        "remote_block_ids": [list(range(1000, 1000 + blocks))],
        "remote_engine_id": f"{role}-0b9e0d6a-6a54-4d4f-9e07-3a5a3d7a2f11",
        "remote_request_id": f"{ID}-{SERIAL.decode()}",
        "remote_host": "127.0.0.1",
        "remote_port": 5600 if prefill else 5601,
        "tp_size": 1,
        "remote_num_tokens": blocks * BLOCK,
        "remote_blocks_expiry_time": None if prefill else 1e6,
    }


def frame(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def event(delta: Json, finish: str | None = None, **extra: Json) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}
    head = {"id": ID, "object": "chat.completion.chunk", "created": 1764440000, "model": "tiny"}
    return frame(b"data: %b\n\n" % json.dumps({**head, "choices": [choice], **extra}, separators=(",", ":")).encode())


FIRST, CONTENT = event({"role": "assistant", "content": ""}), event({"content": " token"})


def numbered(template: tuple[bytes, bytes, bytes], role: Role) -> bytes:
    """Return an answer whose handle has a number of its own."""
    serial = b"%08x" % next(SERIALS)
    if role == "d":
        UNREAD.add(serial)
    before, _, after = template
    return before + serial + after


def read(body: bytes) -> None:
    """Note the handle that prefill was sent."""
    if b'"remote_engine_id":"d-' not in body:
        return
    STATS["p_with_handle"] += 1
    at = body.rindex(REQUEST_ID) + len(REQUEST_ID)
    serial = body[at : at + len(SERIAL)]
    STATS["twice"] += serial not in UNREAD
    UNREAD.discard(serial)


@cache
def last(blocks: int) -> tuple[bytes, bytes, bytes]:
    end = event({"content": ""}, "stop", kv_transfer_params=params(blocks, "d"))
    return (end + frame(b"data: [DONE]\n\n") + b"0\r\n\r\n").partition(SERIAL)


@cache
def whole(blocks: int, role: Role) -> tuple[bytes, bytes, bytes]:
    tokens = blocks * BLOCK
    answer = {
        "id": ID,
        "object": "chat.completion",
        "created": 1764440000,
        "model": "tiny",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": " token"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1},
        "kv_transfer_params": params(blocks, role),
    }
    body = json.dumps(answer, separators=(",", ":")).encode()
    return (HEAD_JSON % len(body) + body).partition(SERIAL)


class Engine(asyncio.Protocol):
    """One connection to one of the two engines."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.loop = asyncio.get_running_loop()
        self.parser = httptools.HttpRequestParser(self)
        self.body: list[bytes] = []
        self.url = b""
        self.closed = False
        self.left = self.blocks = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.closed = True

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        body, self.body = b"".join(self.body), []
        if self.parser.get_method() != b"POST":
            self.page()
            return
        self.blocks = max(1, len(body) // BYTES_PER_TOKEN // BLOCK)
        STATS[self.role] += 1
        if self.role == "p":
            read(body)
            self.later(SETTINGS["prefill_ms"], lambda: self.transport.write(numbered(whole(self.blocks, "p"), "p")))
        elif b'"stream":true' in body or b'"stream": true' in body:
            self.left = int(SETTINGS["chunks"])
            self.later(SETTINGS["first_ms"], self.begin)
        else:
            self.transport.write(numbered(whole(self.blocks, "d"), "d"))

    def later(self, milliseconds: float, do: Any) -> None:  # noqa: ANN401 - any callable
        if milliseconds:
            self.loop.call_later(milliseconds / 1e3, do)
        else:
            do()

    def begin(self) -> None:
        self.transport.write(HEAD_SSE + FIRST)
        self.again()

    def again(self) -> None:
        delay = SETTINGS["delay_ms"]
        if delay:
            self.loop.call_later(delay * (1 + SETTINGS["jitter"] * (random.random() - 0.5)) / 1e3, self.tick)
        else:
            self.loop.call_soon(self.tick)

    def tick(self) -> None:
        if self.closed:
            STATS["aborted"] += 1
        elif self.left:
            self.left -= 1
            self.transport.write(CONTENT)
            self.again()
        else:
            self.transport.write(numbered(last(self.blocks), "d"))

    def page(self) -> None:
        parts = urlsplit(self.url.decode())
        if parts.path == "/_set":
            SETTINGS.update({key: float(value) for key, value in parse_qsl(parts.query)})
        STATS["unread"] = len(UNREAD)
        body = json.dumps(STATS if parts.path == "/_stats" else {"status": "ok"}).encode()
        self.transport.write(HEAD_JSON % len(body) + body)


async def serve(args: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Engine("p"), "127.0.0.1", args.p_port, backlog=2048)
    await loop.create_server(lambda: Engine("d"), "127.0.0.1", args.d_port, backlog=2048)
    await asyncio.sleep(args.max_life_s)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--p-port", type=int, default=18100)
    parser.add_argument("--d-port", type=int, default=18200)
    parser.add_argument("--max-life-s", type=float, default=7200, help="end by itself, should nobody end it")
    sys.exit(uvloop.run(serve(parser.parse_args())))
