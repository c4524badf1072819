"""The sheet as a page: docs/scale.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.scale.routers import ENGINES
from benchmarks.scale.sheet import Deployment, Sheet

from kvdiag.catalogue import METRICS
from kvdiag.causes import label_pairs
from kvdiag.connector.recorder import PEERS
from kvdiag.events import PROMPT_BUCKETS, TURN_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_HEAD: Final = """# Scale sheet

What kvdiag needs, and what breaks first, at {turns:,.0f} turns/s over {engines:,} engines. Unit costs were measured on one machine
(below); the sheet multiplies them. Nothing of this size was run.

    python -m benchmarks.scale measure      # unit costs; the part `engine` starts a real pair
    python -m benchmarks.scale report       # this page

Assumed: {per:.0f} turns a conversation, {gap:.0f} s between them, histories of {tokens:,.0f} tokens, KV of Qwen3-32B in bfloat16
({kv:.0f} KiB a token), a `decoder_kv_blocks_ttl` of {ttl:.0f} s, {share:.0%} of the engines decode with {room:.0f} GB of KV cache each, scrapes
every {scrape:.0f} s, processes planned to use {use:.0%} of a core. Measured {date} on {machine}; {versions}.

| | demand | one unit | need | how it is sharded |
|---|---|---|---|---|
"""


def write(costs: Mapping[str, float], site: Mapping[str, str], docs: Path) -> str:
    """Write the page and return it."""
    plan = Deployment()
    sheet = Sheet(costs, plan)
    head = _HEAD.format(
        turns=plan.turns_per_s,
        engines=plan.engines,
        per=plan.turns_per_conversation,
        gap=plan.gap_s,
        tokens=plan.prompt_tokens,
        kv=plan.kv_bytes_per_token / 1024,
        ttl=plan.decode_ttl_s,
        share=plan.decode_share,
        room=plan.kv_cache_bytes / 1e9,
        scrape=plan.scrape_interval_s,
        use=plan.core_use,
        **site,
    )
    rows = [f"| {line.what} | {line.demand} | {line.unit} | {line.need} | {line.shard} |" for line in sheet.lines()]
    page = "\n".join(
        [head + "\n".join(rows), "", *_breaks(sheet), "", *_labels(), "", *_checks(sheet), "", *_costs(costs)]
    )
    (docs / "scale.md").write_text(page + "\n", encoding="utf-8")
    return page


def _breaks(sheet: Sheet) -> Iterator[str]:
    plan = sheet.deployment
    engines = plan.engines * sheet.engine_series / sheet.series
    yield "## What breaks first"
    yield ""
    yield (
        "1. **Decode's memory**, long before anything of kvdiag's: what is kept for later turns is the product of load, TTL and history. "
        "Set the TTL with `kvdiag tune --memory` and watch `kvdiag_retained_bytes`."
    )
    yield (
        f"2. **One Prometheus**: engines have {engines:.0%} of all series, {sheet.peer_share:.0%} of an engine's name a peer. "
        f"`PROMETHEUS_DISABLE_CREATED_SERIES=true` on engines drops {sheet.costs['connector, 64 peers, _created series']:,.0f} of "
        f"kvdiag's {sheet.costs['connector, 64 peers, series']:,.0f} (and vLLM's own). A server a cell of engines (those that may be "
        f"paired), recording rules there, and remote write of their results alone keep each one small: {sheet.series / 10:,.0f} series "
        f"with ten cells."
    )
    yield (
        "3. **Router processes**: one event loop each, so one process a core. They share nothing but the store; more of them is all it "
        "takes, and a load balancer need not be sticky."
    )
    yield (
        "4. **The store** is far from its limit in operations; its network and memory grow with the length of histories (block ids of a "
        "handle). The router speaks to one server and does not follow the redirections of a Redis Cluster."
    )


def _labels() -> Iterator[str]:
    yield "## Label budgets"
    yield ""
    yield "| label | bound | by |"
    yield "|---|---|---|"
    yield f"| `cause`, `detail` | {len(label_pairs())} pairs | the table of causes |"
    yield f"| `turn`, `prompt` | {len(TURN_BUCKETS)}, {len(PROMPT_BUCKETS)} | fixed buckets |"
    yield f"| `peer` | {PEERS} and `other` | the first so many engines that were read from |"
    yield "| conversation, request, prompt | none | never labels |"
    yield ""
    yield (
        f"{len(METRICS)} metrics in all. Counters are there whole from the start, so that rates begin at zero; TTFT by cause is there for "
        f"turns that went well, and for other causes from their first turn on."
    )


def _checks(sheet: Sheet) -> Iterator[str]:
    costs = sheet.costs
    yield "## Checked by simulation"
    yield ""
    yield "| | predicted | found |"
    yield "|---|---|---|"
    few, many = (costs[f"router, {engines} engines, series"] for engines in (min(ENGINES), max(ENGINES)))
    yield (
        f"| series of a router before {max(ENGINES)} mock engines, against {min(ENGINES)} | {few:,.0f}, and those of other "
        f"causes where they come up | {many:,.0f} |"
    )
    bound = costs[f"connector, {PEERS} peers, series"]
    yield f"| series of a connector after transfers with {10 * PEERS} peers (bound: {PEERS}) | {bound:,.0f} and `other` | {costs[f'connector, {10 * PEERS} peers, series']:,.0f} |"
    wanted = costs["prometheus, targets"] * (costs["prefill page, series"])
    yield (
        f"| series in a real Prometheus that scrapes {costs['prometheus, targets']:.0f} simulated engines, each serving a real engine's page, "
        f"kvdiag's rules loaded | {wanted:,.0f} and its own | {costs['prometheus, series']:,.0f} |"
    )
    yield f"| its evaluation of all rules, ms | within 30 s | {costs['prometheus, rules, ms an evaluation']:.0f} |"


def _costs(costs: Mapping[str, float]) -> Iterator[str]:
    yield "## Unit costs"
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield from (
        f"| {name} | {value:,.4g} |" if value < 1e4 else f"| {name} | {value:,.0f} |" for name, value in costs.items()
    )
