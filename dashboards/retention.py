"""Retention: memory held for later turns, how it ends, gaps against TTL, pressure and queueing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvdiag.dashboards import vllm_series
from kvdiag.dashboards.board import Board, state
from kvdiag.dashboards.panels import BAD, GOOD, MUTED, WARN, Placed, Query, Row, graph_panel, stat_panel
from kvdiag.dashboards.promql import DECODE, ENGINE, ROUTER, mean, or_idle, quantile, rate, ratio, with_role

if TYPE_CHECKING:
    from kvdiag.dashboards.settings import Settings

_ABSENT = "Connector not enabled"
_QUIET = "Nothing released, or connector not enabled (see top row)"
_RELEASES = {"read": GOOD, "expired": WARN, "notified": MUTED}
_EXPIRIES = {"idle_ended": MUTED, "lease_lapsed": WARN, "read_declined": "#f2cc0c", "read_after_release": BAD}
_HOLDERS = "and on (instance) (kvdiag_retention_ttl_seconds > 0)"
"""Prefill engines expose the same gauges and hold nothing for later turns."""
HELD = f"max by (instance) (kvdiag_retained_blocks{{{DECODE}}}) / (max by (instance) (kvdiag_kv_cache_blocks{{{DECODE}}}) > 0) {_HOLDERS}"


def board(settings: Settings) -> Board:
    """Return the board."""
    del settings
    return Board(
        "retention",
        "kvdiag / Retention",
        "How much memory is held for later turns, does it pay, and does it squeeze out running work?",
        (state(), _numbers(), _held(), _ends(), _pressure()),
    )


def _numbers() -> Row:
    return Row((_fullest(), _paid(), _gap(), _ttl()), 4)


def _fullest() -> Placed:
    return Placed(
        stat_panel(
            "Cache held for later turns, fullest engine",
            "Retained blocks over all blocks of the KV cache.",
            Query(f"max({HELD})"),
            unit="percentunit",
            steps=((None, GOOD), (0.3, WARN), (0.5, BAD)),
            absent=_ABSENT,
            decimals=0,
        ),
        6,
    )


def _paid() -> Placed:
    paid = or_idle(
        ratio(
            rate("kvdiag_retained_byte_seconds_total", f'{DECODE},release="read"', window="1h"),
            rate("kvdiag_retained_byte_seconds_total", DECODE, window="1h"),
        ),
        f"kvdiag_retained_blocks{{{DECODE}}}",
    )
    return Placed(
        stat_panel(
            "Retention that paid",
            "Share of retained byte-seconds that ended with a read, last hour. Low: a shorter TTL loses little.",
            Query(paid),
            unit="percentunit",
            steps=((None, WARN), (0.5, GOOD)),
            idle="Nothing released",
            absent=_ABSENT,
            decimals=0,
        ),
        6,
    )


def _gap() -> Placed:
    return Placed(
        stat_panel(
            "Gap between turns, p95",
            "How long a retention must last to serve 95 % of later turns, last hour.",
            Query(
                or_idle(
                    quantile(0.95, "kvdiag_inter_turn_gap_seconds", ROUTER, window="1h"),
                    f"kvdiag_router_handles{{{ROUTER}}}",
                )
            ),
            unit="s",
            decimals=0,
        ),
        6,
    )


def _ttl() -> Placed:
    return Placed(
        stat_panel(
            "TTL: decode and router",
            "decoder_kv_blocks_ttl, and up to which age the router sends handles; must be 5 s below it.",
            Query(f"min(kvdiag_retention_ttl_seconds{{{DECODE}}} > 0)", "decode"),
            Query(f"max(kvdiag_router_handle_ttl_seconds{{{ROUTER}}})", "router"),
            unit="suffix: s",
            absent=_ABSENT,
            decimals=0,
            sparkline=False,
        ),
        6,
    )


def _held() -> Row:
    return Row(
        (
            share_held(),
            _bytes(),
            _conversations(),
        ),
        8,
        "What is held",
    )


def share_held() -> Placed:
    """Return what says how much memory later turns take from running ones."""
    return Placed(
        graph_panel(
            "Share of the cache held, by engine",
            "Alert above 30 % while requests wait.",
            Query(HELD, "{{instance}}"),
            unit="percentunit",
            absent=_ABSENT,
            limit=0.3,
        ),
        8,
    )


def _bytes() -> Placed:
    return Placed(
        graph_panel(
            "Memory held for later turns",
            "By decode engine.",
            Query(f"max by (instance) (kvdiag_retained_bytes{{{DECODE}}}) {_HOLDERS}", "{{instance}}"),
            unit="bytes",
            absent=_ABSENT,
            stacked=True,
        ),
        8,
    )


def _conversations() -> Placed:
    return Placed(
        graph_panel(
            "Conversations held",
            "Finished requests whose blocks wait for a later turn. Every request is held, single-turn ones too.",
            Query(f"max by (instance) (kvdiag_retained_requests{{{DECODE}}}) {_HOLDERS}", "{{instance}}"),
            unit="short",
            absent=_ABSENT,
            stacked=True,
        ),
        8,
    )


def _ends() -> Row:
    return Row(
        (
            _releases(),
            _gaps(),
            expiries(),
        ),
        8,
        "How it ends",
    )


def _releases() -> Placed:
    return Placed(
        graph_panel(
            "Memory-time by how it ended",
            "Byte-seconds per second. Green was used; orange was held for nothing.",
            Query(rate("kvdiag_retained_byte_seconds_total", DECODE, "release"), "{{release}}"),
            unit="bytes",
            absent=_ABSENT,
            stacked=True,
            colours=_RELEASES,
        ),
        8,
    )


def _gaps() -> Placed:
    return Placed(
        graph_panel(
            "Gaps between turns against the TTL",
            "A p95 above the red TTL: those turns come too late.",
            Query(quantile(0.5, "kvdiag_inter_turn_gap_seconds", ROUTER), "gap p50"),
            Query(quantile(0.95, "kvdiag_inter_turn_gap_seconds", ROUTER), "gap p95"),
            Query(f"min(kvdiag_retention_ttl_seconds{{{DECODE}}} > 0)", "TTL"),
            unit="s",
            colours={"TTL": BAD, "gap p50": "#8ab8ff", "gap p95": "#5794f2"},
        ),
        8,
    )


def expiries() -> Placed:
    """Return what tells a conversation that ended from blocks that were lost."""
    return Placed(
        graph_panel(
            "Expiries by meaning",
            "idle_ended is normal: a conversation that simply ended. The others are faults.",
            Query(rate("kvdiag_expiries_total", ENGINE, "kind"), "{{kind}}"),
            unit="reqps",
            absent=_ABSENT,
            stacked=True,
            colours=_EXPIRIES,
        ),
        8,
    )


def _pressure() -> Row:
    return Row(
        (
            _usage(),
            _waiting(),
            queue_time(),
            _preemptions(),
        ),
        8,
        "Pressure",
    )


def _usage() -> Placed:
    return Placed(
        graph_panel(
            "KV cache in use",
            "vLLM's own gauge. On decode it includes what is held for later turns.",
            Query(_engines(vllm_series.CACHE_USAGE), "{{role}} {{instance}}"),
            unit="percentunit",
            absent=_ABSENT,
            limit=0.9,
        ),
        6,
    )


def _waiting() -> Placed:
    return Placed(
        graph_panel(
            "Requests that wait",
            "vLLM's own gauge, requests deferred for remote KV included.",
            Query(_engines(vllm_series.WAITING), "{{role}} {{instance}}"),
            unit="short",
            absent=_ABSENT,
        ),
        6,
    )


def queue_time() -> Placed:
    """Return what says that requests wait for a slot."""
    series = vllm_series.QUEUE_TIME
    return Placed(
        graph_panel(
            "Time in the queue, mean",
            "vLLM's own histogram: from arrival to the first time that a request is scheduled.",
            Query(series.query(lambda name: mean(name.removesuffix("_bucket"), ENGINE, "instance")), "{{instance}}"),
            unit="s",
            absent="No traffic, or vLLM not scraped",
        ),
        6,
    )


def _preemptions() -> Placed:
    return Placed(
        graph_panel(
            "Preemptions",
            "Running requests thrown out for lack of memory.",
            Query(
                vllm_series.PREEMPTIONS.query(lambda name: rate(name, ENGINE, "instance")),
                "{{instance}}",
            ),
            unit="reqps",
            absent="vLLM not scraped",
        ),
        6,
    )


def _engines(series: vllm_series.Series, by: str = "job, instance") -> str:
    return with_role("(" + series.query(lambda name: f"max by ({by}) ({name}{{{ENGINE}}})") + ")")
