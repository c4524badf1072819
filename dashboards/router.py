"""Router: handles, look-ups, retries, errors, and the process itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvdiag.dashboards.board import Board, state
from kvdiag.dashboards.panels import BAD, GOOD, WARN, ZERO_IS_GOOD, Placed, Query, Row, graph_panel, stat_panel
from kvdiag.dashboards.promql import ROUTER, increase, or_idle, quantile, rate, ratio

if TYPE_CHECKING:
    from kvdiag.dashboards.settings import Settings

_ABSENT = "Router not scraped"
_RESULTS = {
    "hit": GOOD,
    "first_turn": "#5794f2",
    "holdout": "#8ab8ff",
    "no_conversation_id": "#f2cc0c",
    "router_lost_state": BAD,
    "not_returned": "#ff9830",
    "incomplete": "#b877d9",
    "consumed": "#fa6400",
    "stale": "#a352cc",
    "restarted": "#ffb357",
    "in_history": "#d9d9d9",
    "unsupported": "#7f7f7f",
}
_DUE = f'{ROUTER},result!~"first_turn|holdout"'
_OWN = "and on (job, instance) kvdiag_router_handles"


def board(settings: Settings) -> Board:
    """Return the board."""
    del settings
    return Board(
        "router",
        "kvdiag / Router",
        "Does the router find the handle of every later turn, and is it healthy itself?",
        (state(), _numbers(), _handles(), _calls(), _process()),
    )


def _numbers() -> Row:
    return Row((_found(), _store(), _errors(), _dropped()), 4)


def _found() -> Placed:
    hits = or_idle(
        ratio(
            rate("kvdiag_router_lookups_total", f'{ROUTER},result="hit"', window="5m"),
            rate("kvdiag_router_lookups_total", _DUE, window="5m"),
        ),
        f"kvdiag_router_handles{{{ROUTER}}}",
    )
    return Placed(
        stat_panel(
            "Look-ups that found a handle",
            "Of turns that should have one, last 5 min.",
            Query(hits),
            unit="percentunit",
            steps=((None, BAD), (0.5, WARN), (0.8, GOOD)),
            decimals=0,
        ),
        6,
    )


def _store() -> Placed:
    return Placed(
        stat_panel(
            "Handle store",
            "Down: serving goes on without reuse.",
            Query(f"min(kvdiag_router_store_up{{{ROUTER}}})"),
            unit="short",
            steps=((None, BAD), (1, GOOD)),
            sparkline=False,
            words={0: ("Down", BAD), 1: ("Up", GOOD)},
        ),
        6,
    )


def _errors() -> Placed:
    return Placed(
        stat_panel(
            "Engine errors",
            "Errors that engines answered, in the chosen range.",
            Query(increase("kvdiag_router_upstream_errors_total", ROUTER)),
            unit="short",
            steps=ZERO_IS_GOOD,
            decimals=0,
            sparkline=False,
        ),
        6,
    )


def _dropped() -> Placed:
    return Placed(
        stat_panel(
            "Events dropped",
            "Telemetry that was lost so that serving never waits, in the chosen range; causes may be missing.",
            Query(increase("kvdiag_dropped_events_total", ROUTER)),
            unit="short",
            steps=ZERO_IS_GOOD,
            decimals=0,
            sparkline=False,
        ),
        6,
    )


def _handles() -> Row:
    return Row(
        (
            _lookups(),
            _held(),
        ),
        8,
        "Handles",
    )


def _lookups() -> Placed:
    return Placed(
        graph_panel(
            "Look-ups by result",
            "Anything but hit, first_turn and holdout is a turn that had to be computed.",
            Query(f"{rate('kvdiag_router_lookups_total', ROUTER, 'result')} > 0", "{{result}}"),
            unit="reqps",
            stacked=True,
            colours=_RESULTS,
        ),
        12,
    )


def _held() -> Placed:
    return Placed(
        graph_panel(
            "Handles held",
            "By router; grows without end: conversations that never return and a TTL that is too long.",
            Query(f"kvdiag_router_handles{{{ROUTER}}}", "{{instance}}"),
            unit="short",
            absent=_ABSENT,
        ),
        12,
    )


def _calls() -> Row:
    return Row(
        (
            _prefill(),
            _first_token(),
            _retries(),
            _errors_by_role(),
        ),
        8,
        "Calls to engines",
    )


def _prefill() -> Placed:
    return Placed(
        graph_panel(
            "Prefill call",
            "Queue, read-back and compute on prefill.",
            *_spread("kvdiag_prefill_seconds"),
            unit="s",
        ),
        6,
    )


def _first_token() -> Placed:
    return Placed(
        graph_panel(
            "Prefill's answer to first token",
            "Hand-off and decode's queue.",
            *_spread("kvdiag_handoff_seconds"),
            unit="s",
        ),
        6,
    )


def _retries() -> Placed:
    return Placed(
        graph_panel(
            "Retries by reason",
            "Calls repeated without the handle or on another engine.",
            Query(rate("kvdiag_router_retries_total", ROUTER, "reason"), "{{reason}}"),
            unit="reqps",
            absent=_ABSENT,
            stacked=True,
        ),
        6,
    )


def _errors_by_role() -> Placed:
    return Placed(
        graph_panel(
            "Errors answered by engines",
            "By role.",
            Query(rate("kvdiag_router_upstream_errors_total", ROUTER, "role"), "{{role}}"),
            unit="reqps",
            absent=_ABSENT,
            stacked=True,
            colours={"prefill": BAD, "decode": WARN},
        ),
        6,
    )


def _process() -> Row:
    return Row(
        (
            own_time(),
            _cpu(),
            _memory(),
            _open_files(),
        ),
        7,
        "The process",
    )


def own_time() -> Placed:
    """Return what a turn spends in the router."""
    return Placed(
        graph_panel(
            "Time in the router itself",
            "Of a turn, until the first byte of its answer went out: look-up, parsing, waiting for a core.",
            *_spread("kvdiag_router_seconds"),
            unit="s",
        ),
        6,
    )


def _cpu() -> Placed:
    return Placed(
        graph_panel(
            "CPU",
            "Cores; one router process can use one.",
            Query(
                f"rate(process_cpu_seconds_total{{{ROUTER}}}[$__rate_interval]) {_OWN}",
                "{{instance}}",
            ),
            unit="short",
            absent=_ABSENT,
            limit=0.9,
        ),
        6,
    )


def _memory() -> Placed:
    return Placed(
        graph_panel(
            "Memory",
            "Resident.",
            Query(f"process_resident_memory_bytes{{{ROUTER}}} {_OWN}", "{{instance}}"),
            unit="bytes",
            absent=_ABSENT,
        ),
        6,
    )


def _open_files() -> Placed:
    return Placed(
        graph_panel(
            "Open files",
            "Connections to clients and engines, mostly.",
            Query(f"process_open_fds{{{ROUTER}}} {_OWN}", "{{instance}}"),
            unit="short",
            absent=_ABSENT,
        ),
        6,
    )


def _spread(histogram: str) -> tuple[Query, ...]:
    return tuple(Query(quantile(q, histogram, ROUTER), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99))
