"""The router as a server: routes, limits, probes, drain."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from kvdiag.errors import InputError
from kvdiag.exporters.jsonl import JsonlSink
from kvdiag.exporters.push import push_from
from kvdiag.exporters.tracing import tracer_from
from kvdiag.router.answers import error_body
from kvdiag.router.bodies import APIS, Body, BodyError
from kvdiag.router.connection import Connection
from kvdiag.router.discovery import Discovery
from kvdiag.router.faults import EngineError
from kvdiag.router.health import Watch
from kvdiag.router.identity import Identifier
from kvdiag.router.ledger import Ledger
from kvdiag.router.metrics import RouterMetrics
from kvdiag.router.passthrough import allowed, pass_through
from kvdiag.router.placement import Engine, Pool
from kvdiag.router.redis import RedisStore
from kvdiag.router.state import Services
from kvdiag.router.stores import MemoryStore
from kvdiag.router.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdiag.events import Role, TurnRecord
    from kvdiag.router.intake import Request
    from kvdiag.router.placement import Address
    from kvdiag.router.settings import Settings
    from kvdiag.router.stores import Store

log = logging.getLogger("kvdiag.router")
SWEEP_S: Final = 1.0
DRAIN_POLL_S: Final = 0.02
GC_THRESHOLDS: Final = (20_000, 20, 20)
"""A turn leaves little cyclic garbage; Python's default looks for it every few turns."""
SWITCH_S: Final = 0.0001
"""How long the metrics thread may keep the interpreter from the event loop."""


class Router:
    """One router process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.registry = CollectorRegistry()
        self.metrics = RouterMetrics(self.registry)
        self.listening = asyncio.Event()
        self.port = settings.port
        """The port that is listened on, once `listening` is set."""
        self.on_turn: Callable[[TurnRecord], None] | None = None
        """Called with each finished turn."""
        self.peers: set[Connection] = set()
        """Clients that are connected."""
        self._in_flight = 0
        self._draining = False
        self._loop = asyncio.get_running_loop()
        self._turn_log = self._open_turn_log()
        self._tracer = tracer_from(
            settings.otlp_endpoint, "kvdiag-router", on_drop=lambda: self.metrics.dropped("otlp")
        )
        self._push = push_from(
            settings.otlp_metrics_endpoint,
            "kvdiag-router",
            self.registry,
            genai=settings.otlp_genai_names,
            on_drop=lambda: self.metrics.dropped("otlp"),
        )
        self._store = self._open_store()
        self.services = Services(
            settings=settings,
            prefills=Pool("prefill", settings.prefill_policy, self._engine),
            decodes=Pool("decode", settings.decode_policy, self._engine),
            ledger=Ledger(
                self._store,
                handle_ttl_s=settings.handle_ttl_s,
                decode_ttl_s=settings.decode_ttl_s,
                clock=time.time,
            ),
            identifier=Identifier(
                settings.hash_key.encode() if settings.hash_key else None, derive=settings.derive_conversations
            ),
            metrics=self.metrics,
            report=self._report,
            tracer=self._tracer,
        )
        self.metrics.handle_ttl.set_function(lambda: self.services.ledger.ttl_s)
        pools = self.services.prefills, self.services.decodes
        discovery = Discovery({"prefill": settings.prefill, "decode": settings.decode}, settings.engines_file)
        self.watch = Watch(pools, self.services.ledger, discovery, settings.health)

    def _open_store(self) -> Store:
        store = self.settings.store
        if store.kind == "redis":
            self.metrics.store_up.set(0)
            return RedisStore(store.url, ttl_s=store.ttl_s, timeout_s=store.timeout_s, on_up=self.metrics.store_up.set)
        memory = MemoryStore(
            time.time,
            max_entries=store.max_entries,
            max_bytes=store.max_bytes,
            ttl_s=store.ttl_s,
            on_evict=self.metrics.evicted,
        )
        self.metrics.handles.set_function(lambda: len(memory))
        return memory

    def _open_turn_log(self) -> JsonlSink | None:
        settings = self.settings
        if settings.turn_log is None:
            return None
        return JsonlSink(
            settings.turn_log,
            on_drop=lambda: self.metrics.dropped("jsonl"),
            max_bytes=settings.turn_log_max_bytes,
            keep=settings.turn_log_keep,
        )

    def _engine(self, role: Role, address: Address) -> Engine:
        return Engine(role, address, time.monotonic, connect_s=self.settings.deadlines.connect_s)

    def _report(self, record: TurnRecord) -> None:
        if self._turn_log is not None:
            self._turn_log.write(record)
        if self.on_turn is not None:
            self.on_turn(record)

    async def handle(self, request: Request, connection: Connection) -> None:
        """Serve one request; a mistake of ours costs this request and no other."""
        try:
            await self._route(request, connection)
        except Exception:
            log.exception("%s %s failed", request.method.decode(), request.path[:200])
            if not connection.head_sent:
                self._error(connection, 500, "internal error of the router")

    async def _route(self, request: Request, connection: Connection) -> None:
        path = request.path
        api = APIS.get(path) if request.method == b"POST" else None
        if api is not None:
            await self._turn(request, connection, api.path)
        elif path == "/metrics":
            await self._scrape(request, connection)
        elif path in {"/health", "/livez"}:
            connection.respond(200, b'{"status":"ok"}')
        elif path == "/readyz":
            self._ready(connection)
        elif allowed(request.method, path):
            await self._pass_through(request, connection)
        else:
            self._error(connection, 404, f"{request.method.decode()} {path[:200]} is not served here")

    def _error(self, connection: Connection, status: int, message: str) -> None:
        connection.respond(status, error_body(status, message))

    async def _turn(self, request: Request, connection: Connection, path: str) -> None:
        if self._draining or self._in_flight >= self.settings.max_in_flight:
            body = error_body(503, "the router takes no further requests now; try again shortly")
            connection.respond(503, body, headers=((b"retry-after", b"1"),))
            return
        try:
            body_fields = Body.parse(APIS[path], request.body)
        except BodyError as error:
            self._error(connection, 400, str(error))
            return
        request.body = b""
        self._in_flight += 1
        try:
            await Turn(self.services, request, connection, body_fields).run()
        finally:
            self._in_flight -= 1

    async def _pass_through(self, request: Request, connection: Connection) -> None:
        try:
            await pass_through(self.services, request, connection)
        except EngineError:
            self._error(connection, 503, "no engine answered; try again shortly")

    async def _scrape(self, request: Request, connection: Connection) -> None:
        """Render in a thread: a large page takes tens of milliseconds, in which streams must go on."""
        encode, content_type = choose_encoder(request.headers.get(b"accept", b"").decode("latin-1"))
        page = await asyncio.to_thread(encode, self.registry)
        connection.respond(200, page, content_type.encode())

    def _ready(self, connection: Connection) -> None:
        known = self.watch.looked.is_set() and self.services.prefills and self.services.decodes
        if self._draining or not known:
            self._error(connection, 503, "not ready: draining, or no engine of a role answers")
        else:
            connection.respond(200, b'{"status":"ready"}')

    # Life.

    async def serve(self, stop: asyncio.Event) -> None:
        """Listen until `stop`, then finish the turns in flight.

        Raises:
            InputError: the address cannot be listened on.

        """
        loop = asyncio.get_running_loop()
        settings = self.settings
        sys.setswitchinterval(SWITCH_S)
        gc.freeze()  # what is there by now stays: no need to look at it again and again
        gc.set_threshold(*GC_THRESHOLDS)
        disable_created_metrics()  # type: ignore[no-untyped-call]
        await asyncio.gather(self.watch.discover(), self._store.ready())
        try:
            server = await loop.create_server(self._connection, settings.host, settings.port, backlog=2048)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(
                f"cannot listen on {settings.host}:{settings.port}: {reason}; choose another --port"
            ) from error
        self.port = server.sockets[0].getsockname()[1]
        chores = [loop.create_task(self._sweep()), loop.create_task(self.watch.run())]
        log.info("listening on %s:%d", settings.host, self.port)
        self.listening.set()
        try:
            await stop.wait()
            await self._drain(server)
        finally:
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)
            await self._close()

    def _connection(self) -> Connection:
        return Connection(self.handle, self.settings.limits, self.peers)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_S)
            now = loop.time()
            for peer in [peer for peer in self.peers if peer.deadline <= now]:
                peer.expire(now)

    async def _drain(self, server: asyncio.Server) -> None:
        """Refuse new turns, let those in flight end, then close."""
        self._draining = True
        server.close()
        log.info("draining: %d turns in flight", self._in_flight)
        for peer in list(self.peers):
            peer.shut()
        until = asyncio.get_running_loop().time() + self.settings.deadlines.drain_s
        while self.peers and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110 - any of many may be last
            await asyncio.sleep(DRAIN_POLL_S)
        for peer in list(self.peers):
            peer.abort()
        await asyncio.sleep(0)

    async def _close(self) -> None:
        for engine in (*self.services.prefills.engines, *self.services.decodes.engines):
            engine.upstream.close()
        await self._store.close()
        if self._turn_log is not None:
            self._turn_log.close()
        if self._tracer is not None:
            self._tracer.close()
        if self._push is not None:
            self._push.close()


async def serve(settings: Settings) -> None:
    """Run a router until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Router(settings).serve(stop)
