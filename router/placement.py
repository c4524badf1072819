"""Engines and the choice among them: sticky decode, least-loaded prefill, a breaker on each."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from kvdiag.errors import InputError
from kvdiag.router.faults import NoEngineError
from kvdiag.router.upstream import Upstream

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from kvdiag.events import Role

Policy = Literal["least_loaded", "round_robin"]
_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[\w.-]+|\[[0-9a-fA-F:.]+\])(:(?P<port>\d{1,5}))?/?(@(?P<first>\d{1,4})(-(?P<last>\d{1,4}))?)?"
)
BREAK_AFTER: Final = 5
"""Failures in a row that open the breaker."""
OPEN_S: Final = 2.0
OPEN_LIMIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine listens."""

    host: str
    port: int
    tls: bool = False
    rank: int | None = None
    """Data-parallel rank behind the endpoint."""

    @classmethod
    def parse(cls, url: str) -> tuple[Address, ...]:
        """Read `http://host:port`, or `http://host:port@0-3` for the data-parallel ranks behind it.

        Raises:
            InputError: it is neither.

        """
        match = _URL.fullmatch(url)
        if match is None:
            raise InputError(f"engine {url!r} is not a URL such as http://host:8000 (http://host:8000@0-3 for ranks)")
        tls = match["scheme"] == "https"
        host, port = match["host"].strip("[]"), int(match["port"] or (443 if tls else 80))
        if match["first"] is None:
            return (cls(host, port, tls),)
        first, last = int(match["first"]), int(match["last"] or match["first"])
        return tuple(cls(host, port, tls, rank) for rank in range(first, last + 1))

    @property
    def name(self) -> str:
        """`host:port`, with the rank where there is one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" + ("" if self.rank is None else f"@{self.rank}")


class Engine:
    """One engine of one role, its connections and its state."""

    def __init__(self, role: Role, address: Address, clock: Callable[[], float], *, connect_s: float) -> None:
        self.role = role
        self.address = address
        self.name = address.name
        self.upstream = Upstream(
            address.host, address.port, tls=address.tls, connect_s=connect_s, gathers=role == "prefill"
        )
        self.load = 0
        """Requests in flight."""
        self.healthy = True
        self.caches_prefixes = True
        """Whether it keeps the KV of prompts it computed, as far as it has said."""
        self._clock = clock
        self._failures = 0
        self._open_until = 0.0
        rank = "" if address.rank is None else f"x-data-parallel-rank: {address.rank}\r\n"
        self._host = f"host: {address.host}:{address.port}\r\n{rank}".encode()

    def request(self, method: bytes, target: bytes, headers: bytes, body: bytes | None) -> bytes:
        """Return a whole request; `headers` are complete lines."""
        length = b"" if body is None else b"content-length: %d\r\n" % len(body)
        return b"%b %b HTTP/1.1\r\n%b%b%b\r\n%b" % (method, target, self._host, headers, length, body or b"")

    @property
    def ready(self) -> bool:
        """Whether it may be picked now."""
        return self.healthy and self.closed

    @property
    def closed(self) -> bool:
        """Whether the breaker lets requests through."""
        return self._clock() >= self._open_until

    def picked(self) -> None:
        """Count a request in; of an engine whose breaker was open only one request at a time finds out more."""
        self.load += 1
        if self._failures >= BREAK_AFTER:
            self._open_until = self._clock() + OPEN_S

    def left(self) -> None:
        """Count a request out."""
        self.load -= 1

    def succeeded(self) -> None:
        """Close the breaker."""
        self._failures = 0
        self._open_until = 0.0

    def failed(self) -> None:
        """Count a failure; the breaker stays open for longer each time."""
        self._failures += 1
        extra = self._failures - BREAK_AFTER
        if extra >= 0:
            self._open_until = self._clock() + min(OPEN_LIMIT_S, OPEN_S * 2 ** min(extra, 10))


class Pool:
    """The engines of one role."""

    def __init__(self, role: Role, policy: Policy, new: Callable[[Role, Address], Engine]) -> None:
        self.role = role
        self.engines: list[Engine] = []
        self._policy = policy
        self._new = new
        self._turn = itertools.count()

    def update(self, addresses: Iterable[Address]) -> bool:
        """Take these engines from now on, with the state of those that stay; say whether anything changed.

        Turns on an engine that goes are left to end.
        """
        wanted = {address.name: address for address in addresses}
        known = {engine.name: engine for engine in self.engines}
        if wanted.keys() == known.keys():
            return False
        for name in known.keys() - wanted.keys():
            known[name].upstream.close()
        self.engines = [known.get(name) or self._new(self.role, address) for name, address in wanted.items()]
        return True

    def pick(self, *, prefer: str | None = None, avoid: Collection[str] = ()) -> Engine:
        """Return the preferred engine if it is ready, else the least loaded (or the next) of those that are.

        Where none is ready, any is tried all the same, first those whose breaker is closed: a busy engine answers its
        health check late, one that restarted may be back before the next look, and to refuse every request is worse.

        Raises:
            NoEngineError: there is none, or each is to be avoided.

        """
        allowed = [engine for engine in self.engines if engine.name not in avoid]
        choice = [engine for engine in allowed if engine.ready] or [e for e in allowed if e.closed] or allowed
        if not choice:
            raise NoEngineError
        for engine in choice:
            if engine.name == prefer:
                return engine
        start = next(self._turn) % len(choice)
        if self._policy == "round_robin":
            return choice[start]
        return min(choice[start:] + choice[:start], key=_load)

    def __bool__(self) -> bool:
        return any(engine.ready for engine in self.engines)


def _load(engine: Engine) -> int:
    return engine.load
