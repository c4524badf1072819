"""What a scenario acts on: one pair of engines, a router of its own, and everything that was asked through them."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

from benchmarks.faults.clients import Exchange, Hand, ask
from benchmarks.faults.recording import INTERVAL_S

from kvdiag.errors import UnavailableError
from kvdiag.localstack import Service, free_port, router_service
from kvdiag.localstack.agent import Agent
from kvdiag.localstack.process import HOST, get
from kvdiag.localstack.stack import START_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from benchmarks.faults.recording import Recorder

    Weather = Callable[[], contextlib.AbstractContextManager[None]]

STEP: Final = "open the file, read the function, edit the line, run the test and report the result; "


class Rig:
    """Context manager around a scenario's routers; the engines are somebody else's and stay up."""

    def __init__(
        self, prefill: Service, decode: Service, folder: Path, arguments: Sequence[str], recorder: Recorder
    ) -> None:
        self.prefill = prefill
        self.decode = decode
        self.folder = folder
        self.exchanges: list[Exchange] = []
        self.routers: list[Service] = []
        self._talks = 0
        self._arguments = tuple(arguments)
        self._recorder = recorder
        self._environment: dict[str, str] = {}
        self._clean_up = contextlib.ExitStack()

    def __enter__(self) -> Self:
        # Jobs are named as in dashboards/prometheus.yaml.
        self._recorder.watch("vllm-prefill", self.prefill)
        self._recorder.watch("vllm-decode", self.decode)
        return self

    def __exit__(self, *_: object) -> None:
        self._clean_up.close()

    @property
    def router(self) -> Service:
        """Return the first router, started when first asked for."""
        return self.routers[0] if self.routers else self.add_router()

    def add_router(self) -> Service:
        """Start another router in front of the same engines."""
        number = len(self.routers) + 1
        name = "router" if number == 1 else f"router-{number}"
        turns = () if number == 1 else ("--turn-log", str(self.folder / f"turns-{number}.jsonl"))
        router = router_service(self.folder, [self.prefill], [self.decode], (*turns, *self._arguments), name)
        router.environment = self._environment
        self.follow(router, "kvdiag-router")
        self.routers.append(router)
        return router

    def follow(self, service: Service, job: str) -> None:
        """Run a service until the scenario is over, and scrape it."""
        service.start()
        self._clean_up.callback(service.stop)
        service.wait_healthy(START_TIMEOUT_S)
        self._recorder.watch(job, service)

    def configure(self, **settings: str) -> None:
        """Set what routers started from now on find in their environment, by the names of their settings."""
        self._environment |= {f"KVDIAG_ROUTER__{name.upper()}": value for name, value in settings.items()}

    def add_store(self) -> Service:
        """Start a Redis server that routers started from now on keep their handles in."""
        if shutil.which("redis-server") is None:
            raise UnavailableError("redis-server is not installed; run: apt-get install redis-server")
        port = free_port()
        command = ["redis-server", "--port", str(port), "--bind", HOST, "--save", "", "--dir", str(self.folder)]
        store = Service("redis", command, self.folder / "redis.log", port)
        store.start()
        self._clean_up.callback(store.stop)
        # Replicas find each other's entries only if they hash ids alike.
        self.configure(store__kind="redis", store__url=f"redis://{HOST}:{port}/0", hash_key="shared by replicas")
        return store

    def wait_for(self, sample: str, timeout_s: float = 60) -> None:
        """Wait until the router's metrics have this line. Raises UnavailableError."""
        began = time.monotonic()
        while sample not in get(self.router.port, "/metrics")[1].decode().splitlines():
            if time.monotonic() - began > timeout_s:
                raise UnavailableError(f"the router did not show {sample!r} within {timeout_s:.0f} s")
            time.sleep(0.2)

    def snapshot(self, service: Service, when: str) -> None:
        """Keep an engine's metrics as they are now, as somebody does who has no Prometheus."""
        page = get(service.port, "/metrics")[1]
        (self.folder / f"{service.name}-metrics-{when}.txt").write_bytes(page)

    def take_for_usual(self) -> None:
        """Take everything until now for the usual state, which alerts compare a fault with."""
        time.sleep(2 * INTERVAL_S)
        self._recorder.take_for_usual()

    def restart(self, service: Service) -> None:
        """Kill a service as a crash would, and start it again."""
        service.kill()
        time.sleep(1)
        service.start()
        service.wait_healthy(START_TIMEOUT_S)

    @contextlib.contextmanager
    def frozen(self, service: Service) -> Iterator[None]:
        """Let a service stand still."""
        service.freeze()
        try:
            yield
        finally:
            service.thaw()

    @contextlib.contextmanager
    def standing_still(self, service: Service, seconds: float) -> Iterator[None]:
        """Let a service stand still for some time, whatever is going on."""
        service.freeze()
        timer = threading.Timer(seconds, service.thaw)
        timer.start()
        try:
            yield
        finally:
            timer.join()

    def agent(self, conversation: str | None = None, *, stream: bool = False, **parameters: object) -> Agent:
        """Return a client of the router."""
        return Agent(self.router.port, conversation, stream, parameters)

    def say(self, agent: Agent, text: str, port: int | None = None) -> Exchange:
        """Let the agent say something, through another router where a port is given."""
        agent.messages.append({"role": "user", "content": text})
        exchange = self.repeat(agent, port)
        agent.messages.append({"role": "assistant", "content": exchange.answer.text})
        return exchange

    def repeat(self, agent: Agent, port: int | None = None) -> Exchange:
        """Send the agent's history as it stands."""
        headers = {"X-Conversation-ID": agent.conversation} if agent.conversation else {}
        parameters = {"stream": agent.stream, **agent.parameters}
        return self.note(ask(port or agent.port, agent.messages, headers=headers, **parameters))

    def words(self, number: int, size: int = 20) -> str:
        """Return what a user says: of some length, never the same twice in a conversation nor in two scenarios.

        Engines outlive a scenario, and so does what their prefix caches hold.
        """
        return f"{self.folder.name} {number}: " + STEP * size

    def talk(self, agent: Agent, turns: int, *, pause_s: float = 0.5, size: int = 20) -> None:
        """Let the agent take some turns that are long enough to be worth a read."""
        for _ in range(turns):
            self.say(agent, self.words(len(agent.messages), size))
            time.sleep(pause_s)

    def by_hand(self) -> Talk:
        """Return a conversation without a router."""
        self._talks += 1
        return Talk(self, self._talks)

    def note(self, exchange: Exchange) -> Exchange:
        """Keep an exchange for the comparison with an honest prefill."""
        self.exchanges.append(exchange)
        return exchange


class Talk:
    """A conversation driven by hand, as a minimal router does: prefill with the handle held, decode with its params."""

    def __init__(self, rig: Rig, number: int) -> None:
        self._rig = rig
        self._number = number
        self._hand = Hand(rig.prefill, rig.decode)
        self.messages: list[dict[str, str]] = []
        self.handle: dict[str, Any] | None = None

    def turns(
        self,
        count: int = 1,
        *,
        size: int = 20,
        pause_s: float = 0.5,
        between_s: float = 0.0,
        prefilling: Weather = contextlib.nullcontext,
        decoding: Weather = contextlib.nullcontext,
    ) -> None:
        """Take some turns; `between_s` passes between prefill and decode, and each runs in a weather of its own."""
        for _ in range(count):
            self.messages.append(
                {"role": "user", "content": self._rig.words(100 * self._number + len(self.messages), size)}
            )
            with prefilling():
                exchange, params = self._hand.prefill(self.messages, self.handle)
            if not exchange.failed:
                time.sleep(between_s)
                with decoding():
                    exchange, self.handle = self._hand.decode(exchange, params)
            self._rig.note(exchange)
            self.messages.append({"role": "assistant", "content": exchange.answer.text})
            time.sleep(pause_s)
