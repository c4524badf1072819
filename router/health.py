"""Watches engines: which there are, which answer, and what they say of their caches, TTL and identity."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Final

from kvdiag.errors import InputError
from kvdiag.router.calls import Call
from kvdiag.router.faults import EngineError, EngineUnreachableError
from kvdiag.router.ledger import usable_ttl

if TYPE_CHECKING:
    from kvdiag.router.discovery import Discovery
    from kvdiag.router.ledger import Ledger
    from kvdiag.router.placement import Engine, Pool
    from kvdiag.router.settings import Health

log = logging.getLogger("kvdiag.router")
_INFO: Final = re.compile(rb"^kvdiag_connector_info\{(.*)\} ", re.MULTILINE)
_NO_PREFIX_CACHE: Final = re.compile(rb'^vllm:cache_config_info\{[^\n]*enable_prefix_caching="False"', re.MULTILINE)
_LABEL: Final = re.compile(rb'(\w+)="([^"\\]*)"')


class Watch:
    """Looks at every engine at an interval."""

    def __init__(self, pools: tuple[Pool, ...], ledger: Ledger, discovery: Discovery, settings: Health) -> None:
        self._pools = pools
        self._ledger = ledger
        self._discovery = discovery
        self._settings = settings
        self._asked: set[Engine] = set()
        self.looked = asyncio.Event()
        """Set once every engine has been probed."""

    async def discover(self) -> None:
        """Bring the pools up to date.

        Raises:
            InputError: a source is wrong; the pools stay as they are.

        """
        self._discovery.read()
        for pool in self._pools:
            addresses = await self._discovery.engines(pool.role)
            if pool.update(addresses):
                log.info("%s engines: %s", pool.role, ", ".join(engine.name for engine in pool.engines) or "none")

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._settings.interval_s)
            try:
                await self.discover()
            except InputError as error:
                log.warning("%s; keeping the engines known before", error)

    async def look(self) -> None:
        """Probe every engine once."""
        engines = [engine for pool in self._pools for engine in pool.engines]
        await asyncio.gather(*map(self._probe, engines))
        self.looked.set()

    async def _probe(self, engine: Engine) -> None:
        try:
            status, _ = await self._get(engine, self._settings.path)
        except EngineUnreachableError:
            self._note(engine, healthy=False)
            self._asked.discard(engine)
            if engine.role == "decode":
                self._ledger.void(engine.name)
            return
        except EngineError:
            status = 0
        self._note(engine, healthy=status == 200)
        if engine.healthy and engine not in self._asked:
            self._asked.add(engine)
            await self._ask(engine)

    async def _get(self, engine: Engine, path: str) -> tuple[int, bytes]:
        with Call(engine, path.encode(), forgiving=True) as call:
            exchange = await call.open(b"", None, self._settings.timeout_s, b"GET")
            return exchange.status, await exchange.body(self._settings.timeout_s)

    def _note(self, engine: Engine, *, healthy: bool) -> None:
        if engine.healthy != healthy:
            log.log(
                logging.INFO if healthy else logging.WARNING,
                "%s engine %s %s",
                engine.role,
                engine.name,
                "answers again" if healthy else "does not answer",
            )
        engine.healthy = healthy

    async def _ask(self, engine: Engine) -> None:
        """Read an engine's effective configuration."""
        try:
            _, page = await self._get(engine, "/metrics")
        except EngineError:
            return
        engine.caches_prefixes = _NO_PREFIX_CACHE.search(page) is None
        found = _INFO.search(page)
        if engine.role == "decode" and found is not None:
            self._learn(engine, dict(_LABEL.findall(found[1])))

    def _learn(self, engine: Engine, labels: dict[bytes, bytes]) -> None:
        """Take what decode's connector says of itself; a stock one says nothing."""
        ttl = _number(labels.get(b"ttl_seconds"))
        self._ledger.learn(engine.name, engine_id=labels.get(b"engine_id", b"").decode("ascii", "ignore"), ttl_s=ttl)
        ours = self._ledger.handle_ttl_s
        if ttl is not None and ours is not None and ours > usable_ttl(ttl, safety_s=0):
            log.warning(
                "handle_ttl_s is %g, but decode engine %s keeps blocks for %g s and prefill declines reads 5 s before "
                "that: late turns will fail or recompute; set handle_ttl_s below %g or leave it out",
                ours,
                engine.name,
                ttl,
                usable_ttl(ttl, safety_s=0),
            )


def _number(text: bytes | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
