"""Scripted engines, a client that speaks HTTP by hand, and a router between them, all in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvdiag.router.server import Router
from kvdiag.router.settings import Health, Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from kvdiag.events import TurnRecord

Json = dict[str, Any]


@dataclass
class Seen:
    """One request as an engine saw it."""

    method: str
    path: str
    headers: dict[str, str]
    body: Json

    @property
    def params(self) -> Json:
        params = self.body.get("kv_transfer_params")
        return params if isinstance(params, dict) else {}


@dataclass
class Act:
    """How an engine answers one request."""

    status: int = 200
    body: Json | None = None
    events: list[bytes] | None = None
    headers: tuple[tuple[str, str], ...] = ()
    hang: bool = False
    """Never answer."""
    hang_after: int | None = None
    """Stop after so many events, keeping the connection."""
    drop: bool = False
    """Close before answering."""
    drop_after: int | None = None
    """Close after so many events."""
    pace_s: float = 0.0


@dataclass
class FakeEngine:
    """An engine that plays acts; without one it behaves as vLLM with NIXL does."""

    role: str
    engine_id: str = "engine-1"
    ttl_context: bool = False
    """Whether handles carry the `kvdiag` key of the instrumented connector."""
    text: str = "Hello there"
    seen: list[Seen] = field(default_factory=list)
    acts: deque[Act] = field(default_factory=deque)
    aborted: int = 0
    port: int = 0
    outcome: Json | None = None
    """What prefill's connector says under `kvdiag`."""
    cached: int | None = None
    returns_handle: bool = True
    pages: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._number = itertools.count(1)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def turns(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.method == "POST"]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._serve(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.aborted += 1
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False
        lines = head.decode().split("\r\n")
        method, path, _ = lines[0].split(" ")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:] if line)}
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        seen = Seen(method, path, headers, json.loads(raw.decode("utf-8", "replace")) if raw else {})
        self.seen.append(seen)
        if method == "GET":
            return await self._page(path, writer)
        act = self.acts.popleft() if self.acts else Act()
        return await self._play(act, seen, reader, writer)

    async def _page(self, path: str, writer: asyncio.StreamWriter) -> bool:
        page = self.pages.get(path)
        body = (page if page is not None else json.dumps({"object": "list", "path": path})).encode()
        status = b"404 Not Found" if page == "" else b"200 OK"
        writer.write(
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        )
        writer.write(body)
        await writer.drain()
        return True

    async def _play(self, act: Act, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if act.drop:
            return False
        if act.hang:
            await self._wait_for_abort(reader)
        stream = seen.body.get("stream") is True and act.body is None and act.status == 200
        if stream or act.events is not None:
            return await self._stream(act, seen, reader, writer)
        body = json.dumps(act.body if act.body is not None else self._answer(seen, act.status)).encode()
        extra = "".join(f"{name}: {value}\r\n" for name, value in act.headers)
        writer.write(f"HTTP/1.1 {act.status} X\r\ncontent-type: application/json\r\n{extra}".encode())
        writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        return True

    async def _wait_for_abort(self, reader: asyncio.StreamReader) -> None:
        assert await reader.read(1) == b""
        raise ConnectionResetError

    async def _stream(self, act: Act, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for index, event in enumerate(act.events if act.events is not None else self.events(seen)):
            if index == act.drop_after:
                writer.transport.abort()
                return False
            if index == act.hang_after:
                await self._wait_for_abort(reader)
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
            if act.pace_s:
                await asyncio.sleep(act.pace_s)
            if reader.at_eof():
                raise ConnectionResetError
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def handle(self) -> Json:
        prefill = self.role == "prefill"
        params: Json = {
            "do_remote_prefill": prefill,
            "do_remote_decode": not prefill,
            "remote_block_ids": [[1, 2, 3]],
            "remote_engine_id": self.engine_id,
            "remote_request_id": f"{self.role}-{next(self._number)}",
            "remote_host": "10.0.0.9",
            "remote_port": 5600,
            "tp_size": 1,
            "remote_num_tokens": 48,
            "remote_blocks_expiry_time": None if prefill else 1234.5,
        }
        if prefill and self.outcome is not None:
            params["kvdiag"] = {"v": 1, **self.outcome}
        if prefill and self.cached is not None:
            params["remote_prefill_cached_tokens"] = self.cached
        if not prefill and self.ttl_context:
            params["kvdiag"] = {"v": 1, "prefix": "p" * 8, "prompt_tokens": 40, "ttl_s": 480.0}
        return params

    def _answer(self, seen: Seen, status: int) -> Json:
        if status != 200:
            return {"error": {"message": "engine says no", "code": status}, "kv_transfer_params": {"secret": 1}}
        answer: Json = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": self.text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 40, "completion_tokens": 2, "total_tokens": 42},
        }
        if seen.params and self.returns_handle:
            answer["kv_transfer_params"] = self.handle()
        return answer

    def events(self, seen: Seen) -> list[bytes]:
        pieces = [self.text[i : i + 4] for i in range(0, len(self.text), 4)]
        chunks = [chunk({"role": "assistant", "content": ""})]
        chunks += [chunk({"content": piece}) for piece in pieces]
        extra = {"kv_transfer_params": self.handle()} if seen.params and self.returns_handle else {}
        chunks.append(chunk({"content": ""}, "stop", **extra))
        return [sse(one) for one in chunks] + [b"data: [DONE]\n\n"]


def chunk(delta: Json, finish: str | None = None, **extra: Json) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **extra}


def sse(event: Json) -> bytes:
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Json:
        decoded = json.loads(self.body)
        assert isinstance(decoded, dict)
        return decoded

    @property
    def text(self) -> str:
        """The answer's text, streamed or not."""
        if not self.headers["content-type"].startswith("text/event-stream"):
            content = self.json()["choices"][0]["message"]["content"]
            assert isinstance(content, str)
            return content
        lines = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: {")]
        return "".join(json.loads(line)["choices"][0]["delta"].get("content") or "" for line in lines)


class Client:
    """One connection, by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read_head(self) -> tuple[int, dict[str, str]]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = head.split("\r\n")
        return int(lines[0].split(" ")[1]), {
            k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:] if line)
        }

    async def read_chunk(self) -> bytes:
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def reply(self) -> Reply:
        status, headers = await self.read_head()
        while status == 100:
            status, headers = await self.read_head()
        if headers.get("transfer-encoding") == "chunked":
            parts = []
            while part := await self.read_chunk():
                parts.append(part)
            return Reply(status, headers, b"".join(parts))
        length = headers.get("content-length")
        body = await (self.reader.read() if length is None else self.reader.readexactly(int(length)))
        return Reply(status, headers, body)

    def close(self) -> None:
        self.writer.close()


@dataclass
class Stack:
    """A router between engines."""

    router: Router
    prefills: list[FakeEngine]
    decodes: list[FakeEngine]
    records: list[TurnRecord]
    stop: asyncio.Event
    serving: asyncio.Task[None]
    clients: list[Client] = field(default_factory=list)

    @property
    def prefill(self) -> FakeEngine:
        return self.prefills[0]

    @property
    def decode(self) -> FakeEngine:
        return self.decodes[0]

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.router.port))
        self.clients.append(client)
        return client

    async def post(self, path: str, body: Json | bytes, **headers: str) -> Reply:
        client = await self.connect()
        try:
            await client.send(post(path, body, **headers))
            return await client.reply()
        finally:
            client.close()

    async def get(self, path: str, **headers: str) -> Reply:
        client = await self.connect()
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        try:
            await client.send(f"GET {path} HTTP/1.1\r\nhost: x\r\n{lines}\r\n".encode())
            return await client.reply()
        finally:
            client.close()

    async def chat(self, *contents: str, stream: bool = False, conversation: str | None = "c1", **extra: Any) -> Reply:  # noqa: ANN401 - any field
        """Send a history: contents alternate between user and assistant."""
        messages = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(contents)]
        body: Json = {"model": "m", "messages": messages, "stream": stream, **extra}
        headers = {} if conversation is None else {"x_conversation_id": conversation}
        return await self.post("/v1/chat/completions", body, **headers)

    def sample(self, name: str, **labels: str) -> float:
        return self.router.registry.get_sample_value(name, labels) or 0.0


def post(path: str, body: Json | bytes, **headers: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\nhost: x\r\n{lines}content-length: {len(data)}\r\n\r\n".encode() + data


@contextlib.asynccontextmanager
async def running(
    *,
    prefills: int = 1,
    decodes: int = 1,
    change: Callable[[Settings], Settings] = lambda settings: settings,
) -> AsyncIterator[Stack]:
    """Start engines and a router; `change` edits its settings."""
    fakes = [FakeEngine("prefill", f"p-{n}") for n in range(prefills)]
    others = [FakeEngine("decode", f"d-{n}") for n in range(decodes)]
    for engine in (*fakes, *others):
        await engine.start()
    urls = tuple(e.url for e in fakes), tuple(e.url for e in others)
    settings = Settings(prefill=urls[0], decode=urls[1], port=0, health=Health(interval_s=3600))
    router = Router(change(settings))
    records: list[TurnRecord] = []
    router.on_turn = records.append
    stop = asyncio.Event()
    serving = asyncio.create_task(router.serve(stop))
    await router.listening.wait()
    await router.watch.looked.wait()
    stack = Stack(router, fakes, others, records, stop, serving)
    try:
        yield stack
    finally:
        for client in stack.clients:
            client.close()
        stop.set()
        await serving
        for engine in (*fakes, *others):
            await engine.stop()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run one scenario, bounded."""
    asyncio.run(asyncio.wait_for(scenario, 30))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another task does; `run` bounds it."""
    while not condition():  # noqa: ASYNC110 - the condition is anything
        await asyncio.sleep(0.005)
