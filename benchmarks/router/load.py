"""Closed- or open-loop load on a streaming chat endpoint; prints one JSON line.

TTFT is from the request written to the first byte of the stream. Connections are kept alive, bodies are built before the
clock starts; only a fixed-width conversation id differs. Open loop (`--rate`) has Poisson arrivals, the same for every
target: users of a closed loop with fixed stream lengths fall into step and queue on one another.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import cast

import httptools
import uvloop

clock = time.perf_counter
SLOT = b"@" * 16
WORDS = "the cache of block table prefill decode transfer router turn agent tool call result file line test error fix "


def body_of(size: int) -> bytes:
    """Return a chat body of about `size` bytes with a slot for a conversation id."""
    turns = max(1, min(40, size // 2000)) * 2 - 1
    each = max(16, (size - 200) // turns)
    text = WORDS * (each // len(WORDS) + 1)
    messages = [{"role": "assistant" if i % 2 else "user", "content": f"{i} {text}"[:each]} for i in range(turns)]
    body = {"model": "tiny", "messages": messages, "stream": True, "max_tokens": 50, "conversation_id": SLOT.decode()}
    return json.dumps(body).encode()


class Connection(asyncio.Protocol):
    """One connection: a request, its timing, the next request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.alive = True
        self.done: asyncio.Future[bool] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.alive = False
        self._end(whole=False)

    def request(self, raw: bytes) -> asyncio.Future[bool]:
        self.parser = httptools.HttpResponseParser(self)
        self.first = 0.0
        self.tail = b""
        self.done = asyncio.get_running_loop().create_future()
        self.started = clock()
        self.transport.write(raw)
        return self.done

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.first = self.first or clock()
        self.tail = data if len(data) > 30 else self.tail[-30:] + data

    def on_message_complete(self) -> None:
        self.ended = clock()
        self._end(whole=True)

    def _end(self, *, whole: bool) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result(whole)

    def problem(self) -> str | None:
        """Return what was wrong with the answer."""
        status = self.parser.get_status_code()
        if status != 200:
            return f"status {status}"
        return None if b"[DONE]" in self.tail else "no [DONE]"


@dataclass
class Load:
    """One run."""

    args: argparse.Namespace
    ttft: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    sent: int = 0

    def __post_init__(self) -> None:
        body = body_of(self.args.size)
        self.before, _, self.after = body.partition(SLOT)
        self.head = (
            f"POST {self.args.path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\naccept: */*\r\n"
            f"content-length: {len(body)}\r\n"
        ).encode()
        self.shots = itertools.count()
        self.start = clock() + 0.05
        self.measure = self.start + self.args.warmup
        self.stop = self.measure + self.args.duration

    async def connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, "127.0.0.1", self.args.port)
        return connection

    async def shot(self, connection: Connection, conversation: int) -> None:
        self.sent += 1
        name = b"%016d" % conversation
        raw = b"%bx-conversation-id: %b\r\n\r\n%b%b%b" % (self.head, name, self.before, name, self.after)
        problem = connection.problem() if await connection.request(raw) else "closed"
        if connection.started < self.measure:
            return
        if problem is not None:
            self.errors[problem] += 1
            return
        self.ttft.append(connection.first - connection.started)
        self.whole.append(connection.ended - connection.started)

    def more(self) -> bool:
        return self.sent < self.args.turns if self.args.turns else clock() < self.stop

    async def user(self, number: int) -> None:
        await asyncio.sleep(max(0, self.start - clock()))
        connection = await self.connect()
        while self.more():
            if not connection.alive:
                connection = await self.connect()
            if self.args.conversations:
                number = next(self.shots) % self.args.conversations
            await self.shot(connection, self.args.conv_base + number)
        connection.transport.close()

    async def arrivals(self) -> None:
        """Send at Poisson times; more than `--conc` at once are dropped and counted."""
        idle: list[Connection] = []
        running: set[asyncio.Task[None]] = set()
        chance, due, number = random.Random(self.args.seed), self.start, 0

        async def one(conversation: int) -> None:
            connection = idle.pop() if idle else await self.connect()
            if not connection.alive:
                connection = await self.connect()
            await self.shot(connection, conversation)
            idle.append(connection)

        while due < self.stop:
            due += chance.expovariate(self.args.rate)
            await asyncio.sleep(max(0, due - clock()))
            number += 1
            if len(running) >= self.args.conc:
                self.errors["dropped"] += 1
                continue
            task = asyncio.create_task(one(self.args.conv_base + number % self.args.conc))
            running.add(task)
            task.add_done_callback(running.discard)
        if running:
            await asyncio.wait(running, timeout=30)

    async def run(self) -> dict[str, object]:
        if self.args.rate:
            await self.arrivals()
        else:
            await asyncio.gather(*map(self.user, range(self.args.conc)))
        took = (clock() if self.args.turns else max(clock(), self.stop)) - self.measure
        return {
            "sent": self.sent,
            "n": len(self.whole),
            "rps": round(len(self.whole) / took, 2),
            "errors": dict(self.errors),
            "ttft_ms": {"p50": quantile(self.ttft, 0.5), "p99": quantile(self.ttft, 0.99)},
            "whole_ms": {"p50": quantile(self.whole, 0.5), "p99": quantile(self.whole, 0.99)},
        }


def quantile(seconds: list[float], share: float) -> float | None:
    """Return a quantile in milliseconds."""
    ordered = sorted(seconds)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e3, 3) if ordered else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", default="/v1/chat/completions")
    parser.add_argument("--conc", type=int, default=1, help="users, or with --rate requests at once")
    parser.add_argument("--rate", type=float, default=0, help="arrivals a second; 0 is a closed loop")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=int, default=1000, help="bytes of a body")
    parser.add_argument("--duration", type=float, default=5)
    parser.add_argument("--turns", type=int, default=0, help="closed loop: end after so many, however long it takes")
    parser.add_argument("--warmup", type=float, default=1)
    parser.add_argument("--conv-base", type=int, default=0)
    parser.add_argument("--conversations", type=int, default=0, help="go round so many; 0: one a user")

    async def run() -> dict[str, object]:
        return await Load(parser.parse_args()).run()

    json.dump(uvloop.run(run()), sys.stdout)


if __name__ == "__main__":
    main()
