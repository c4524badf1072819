"""From unit costs to a deployment: every line is a demand, what one unit takes of it, and how many units that makes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from benchmarks.scale.routers import ENGINES

if TYPE_CHECKING:
    from collections.abc import Mapping

GB: Final = 1e9
DAY_S: Final = 86_400
_ENGINE_LOG: Final = "classify, CPU s a GB of an engine's log"


@dataclass(frozen=True)
class Deployment:
    """What is assumed. Everything else on the sheet is measured or follows."""

    turns_per_s: float = 10_000
    engines: int = 1_000
    turns_per_conversation: float = 10
    gap_s: float = 30
    """Mean pause between two turns of a conversation."""
    decode_ttl_s: float = 120
    prompt_tokens: float = 20_000
    kv_bytes_per_token: float = 64 * 2 * 8 * 128 * 2
    """Qwen3-32B: layers x (K, V) x KV heads x head size x two bytes."""
    decode_share: float = 0.6
    """Of the engines."""
    kv_cache_bytes: float = 300e9
    """Of one decode engine (a node of eight GPUs)."""
    scrape_interval_s: float = 15
    core_use: float = 0.6
    """How much of a core a process may be planned to use."""

    @property
    def conversations_per_s(self) -> float:
        """Return how many begin, and end, in a second."""
        return self.turns_per_s / self.turns_per_conversation

    @property
    def live(self) -> float:
        """Return the conversations between two turns at any time."""
        return self.turns_per_s * self.gap_s * (1 - 1 / self.turns_per_conversation)

    @property
    def decode_engines(self) -> int:
        """Return how many engines decode."""
        return round(self.engines * self.decode_share)


@dataclass(frozen=True)
class Line:
    """One line of the sheet."""

    what: str
    demand: str
    unit: str
    need: str
    shard: str


@dataclass(frozen=True)
class Sheet:
    """All lines, from the measured costs of one unit each."""

    costs: Mapping[str, float]
    deployment: Deployment

    @property
    def routers(self) -> int:
        """Return how many router processes there are: by CPU, with histories of 20,000 tokens."""
        cores = self.deployment.turns_per_s * self.costs["router, 80 KB, CPU ms a turn"] / 1e3
        return math.ceil(cores / self.deployment.core_use)

    def router_page(self, key: Literal["series", "bytes"]) -> float:
        """Return series or bytes of one router's page: no metric of it names an engine, so the largest seen will do."""
        return max(self.costs[f"router, {engines} engines, {key}"] for engines in ENGINES)

    @property
    def engine_series(self) -> float:
        """Return the series of one engine with as many peers as it names: vLLM's own and ours."""
        own = self.costs["prefill page, series"] - self.costs["prefill page, kvdiag series"]
        return own + self.costs["connector, 64 peers, series"]

    @property
    def peer_share(self) -> float:
        """Return the share of an engine's series that name a peer."""
        return (
            self.costs["connector, 64 peers, series"] - self.costs["connector, 0 peers, series"]
        ) / self.engine_series

    @property
    def series(self) -> float:
        """Return the series of everything."""
        return self.engine_series * self.deployment.engines + self.routers * self.router_page("series")

    @property
    def retained_bytes(self) -> float:
        """Return what decode keeps for later turns: of live conversations, and of those that are over until their TTL."""
        plan = self.deployment
        waiting = min(plan.gap_s, plan.decode_ttl_s) * (plan.turns_per_s - plan.conversations_per_s)
        over = plan.decode_ttl_s * plan.conversations_per_s
        return (waiting + over) * plan.prompt_tokens * plan.kv_bytes_per_token

    def lines(self) -> list[Line]:
        """Return the sheet."""
        return [self._retention(), self._routers(), self._redis(), self._prometheus(), self._turn_log(), self._cli()]

    def _retention(self) -> Line:
        plan = self.deployment
        per = plan.prompt_tokens * plan.kv_bytes_per_token / GB
        total, room = self.retained_bytes / GB, plan.decode_engines * plan.kv_cache_bytes / GB
        return Line(
            "KV kept on decode for later turns",
            f"{plan.live:,.0f} conversations between turns and {plan.decode_ttl_s * plan.conversations_per_s:,.0f} that are over",
            f"{per:.1f} GB a conversation of {plan.prompt_tokens:,.0f} tokens",
            f"{total / 1e3:,.0f} TB of {room / 1e3:,.0f} TB of KV cache ({total / room:.1f} times what there is)",
            "by decode engine (sticky); `kvdiag tune --memory` sets the TTL that fits",
        )

    def _routers(self) -> Line:
        per = self.costs["router, 80 KB, CPU ms a turn"]
        return Line(
            "router CPU",
            f"{self.deployment.turns_per_s:,.0f} turns/s",
            f"{per:.2f} ms a turn with 80 KB of history ({self.costs['router, 1 KB, CPU ms a turn']:.2f} ms with 1 KB)",
            f"{self.routers} processes at {self.deployment.core_use:.0%} of a core",
            "any replica takes any turn; handles are in Redis",
        )

    def _redis(self) -> Line:
        plan, costs = self.deployment, self.costs
        operations = plan.turns_per_s * costs["redis, operations a turn"]
        cores = operations * costs["redis, CPU us an operation"] / 1e6
        kept = plan.live + plan.conversations_per_s * plan.decode_ttl_s
        network = plan.turns_per_s * (costs["redis, bytes in a turn"] + costs["redis, bytes out a turn"]) * 8 / 1e9
        return Line(
            "shared handle store",
            f"{operations:,.0f} operations/s, {kept:,.0f} handles",
            f"{costs['redis, operations a turn']:.1f} operations a turn of {costs['redis, CPU us an operation']:.0f} us, "
            f"{costs['redis, bytes a conversation'] / 1e3:.1f} KB a handle",
            f"{cores:.1f} cores, {kept * costs['redis, bytes a conversation'] / GB:.1f} GB, {network:.1f} Gbit/s: "
            f"{max(1, math.ceil(cores / plan.core_use))} shards",
            "every command names one key: one server a cell of engines, or a cluster behind a proxy that hides it",
        )

    def _prometheus(self) -> Line:
        plan, costs = self.deployment, self.costs
        rate = self.series / plan.scrape_interval_s
        cores = rate * costs["prometheus, CPU us a sample"] / 1e6
        memory = self.series * costs["prometheus, bytes a series"] / GB
        scraped = (
            plan.engines * costs["prefill page, bytes"] + self.routers * self.router_page("bytes")
        ) / plan.scrape_interval_s
        return Line(
            "Prometheus",
            f"{self.series:,.0f} series: {plan.engines:,} engines of {self.engine_series:,.0f}, "
            f"{self.routers} routers of {self.router_page('series'):,.0f}",
            f"{costs['prometheus, CPU us a sample']:.1f} us a sample, {costs['prometheus, bytes a series'] / 1e3:.1f} KB a series",
            f"{cores:.1f} cores, {memory:.1f} GB, {scraped / 1e6:.0f} MB/s of pages at {plan.scrape_interval_s:.0f} s",
            "one server a cell of engines; recording rules first, remote write of their results alone",
        )

    def _turn_log(self) -> Line:
        per = self.costs["turn log, bytes a turn"]
        events = self.costs["prefill events, bytes a turn"] + self.costs["decode events, bytes a turn"]
        rate = self.deployment.turns_per_s
        return Line(
            "turn and event logs",
            f"{rate:,.0f} turns/s",
            f"{per:.0f} bytes a turn from the router, {events:,.0f} from the connectors",
            f"{rate * per * DAY_S / 1e12:.2f} and {rate * events * DAY_S / 1e12:.2f} TB a day in all, "
            f"{rate * per / self.routers / 1e3:.0f} KB/s from one router",
            "by process; rotation bounds each, compression and shipping as for any log",
        )

    def _cli(self) -> Line:
        per = self.costs["classify, CPU s a GB of a turn log"]
        minute = self.deployment.turns_per_s * 60 * self.costs["turn log, bytes a turn"] / GB
        return Line(
            "`kvdiag classify`",
            f"{minute:.2f} GB of turn logs a minute",
            f"{self.costs[_ENGINE_LOG]:.1f} CPU s a GB of an engine's log, {per:.0f} of turn logs",
            f"{minute * per:.0f} CPU s for a minute of everything, {minute * per / self.routers:.1f} for a minute of one router",
            "an incident is read by router or engine, not whole",
        )
