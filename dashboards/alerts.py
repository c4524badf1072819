"""The alerts as data: symptoms that users feel, each cause's loss above its budget, and what blinds or breaks reuse.

Shares are over 15 minutes with a traffic floor: at two turns an hour one bad turn is half of all and no news.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from kvdiag.dashboards.settings import Settings

Severity = Literal["page", "ticket", "info"]

TURNS: Final = "kvdiag:turns:increase15m"
CAUSE_SHARE: Final = "kvdiag:turns_by_cause:ratio15m"
LOST_SHARE: Final = "kvdiag:lost_tokens_by_cause:ratio15m"
REUSED_SHARE: Final = "kvdiag:later_turns_reused:ratio15m"
HELD_SHARE: Final = "kvdiag:retained_blocks:ratio"
QUEUE_TIME: Final = "kvdiag:queue_time_seconds:mean15m"
SPEED: Final = "kvdiag:transfer_speed:mean15m"
OWN_TIME: Final = "kvdiag:router_seconds:p95_15m"
MISSES: Final = "kvdiag:later_turn_ttft_misses:ratio"
"""Suffixed by the window."""
_FLOOR: Final = f"and on () {TURNS} > 20"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule, the page that mends it and the panel that shows it."""

    name: str
    expr: str
    severity: Severity
    wait: str
    """How long it must hold: Prometheus' `for`."""
    summary: str
    why: str
    """What it means, what a false alarm looks like and what to raise then."""
    runbook: str
    """Name of the page; may be a template over the alert's labels."""
    board: str
    panel: str
    cause: str = ""


def alerts(settings: Settings) -> tuple[Alert, ...]:
    """Return every alert."""
    return (*_objective(settings), *_REUSE, *_by_share(), *_by_time(settings), *_BY_COUNT, *_SET_UP)


@dataclass(frozen=True, slots=True)
class Budget:
    """The share of turns that may end with a cause before somebody looks."""

    cause: str
    share: float
    severity: Severity
    why: str


BUDGETS: Final = (
    Budget("missing_metadata", 0.1, "ticket", "Handles get lost between decode and prefill."),
    Budget("feature_off", 0.05, "ticket", "An engine runs without bidirectional transfer. Expected during a rollout."),
    Budget(
        "prefix_diverged",
        0.5,
        "ticket",
        "Histories change. Inherent for templates that strip reasoning: raise it there.",
    ),
    Budget("expired_remote_read", 0.1, "ticket", "Turns come after decode's TTL. Raise it where users pause for long."),
    Budget("peer_unreachable", 0.05, "ticket", "Handles point at engines that are gone or do not fit."),
    Budget("compute_bound", 0.5, "info", "Long new prompts explain the time; capacity planning, not a fault."),
    Budget("client", 0.3, "info", "Clients leave or read slowly. Agents that cancel by design: raise it."),
    Budget("upstream_error", 0.02, "page", "Engines answer with errors: turns fail."),
    Budget("unexplained", 0.2, "info", "Causes are missing: an input is not there, or a fault is new."),
)


def camel(cause: str) -> str:
    """Return a cause as an alert's name spells it."""
    return "".join(part.capitalize() for part in cause.split("_"))


def _objective(settings: Settings) -> tuple[Alert, ...]:
    budget = 1 - settings.ttft_target

    def burn(name: str, severity: Severity, factor: float, long: str, short: str, floor: int) -> Alert:
        limit = round(factor * budget, 4)
        return Alert(
            name,
            f"{MISSES}_{long} > {limit:g} and {MISSES}_{short} > {limit:g} "
            f'and on () sum(increase(kvdiag_turn_ttft_seconds_count{{turn!="1",arm="reuse"}}[{long}])) > {floor}',
            severity,
            "2m",
            f"{{{{ $value | humanizePercentage }}}} of later turns started after {settings.ttft_objective:g} s "
            f"(last {long}; the objective allows {budget:.0%})",
            f"The error budget of later turns burns {factor:g} times as fast as it may, over {long} and still over {short}.",
            "triage",
            "overview",
            f"Later turns within {settings.ttft_objective:g} s",
        )

    return (
        burn("KvdiagTtftBurnFast", "page", 14.4, "1h", "5m", 20),
        burn("KvdiagTtftBurnSlow", "ticket", 6, "6h", "30m", 60),
        burn("KvdiagTtftBurnDays", "ticket", 1, "3d", "6h", 200),
    )


_REUSE: Final = (
    Alert(
        "KvdiagReuseDrop",
        f"{REUSED_SHARE} < 0.5 * avg_over_time({REUSED_SHARE}[1d] offset 1h) {_FLOOR}",
        "ticket",
        "10m",
        "Only {{ $value | humanizePercentage }} of later turns reused, less than half of yesterday's share",
        "Against its own day before, so that workloads with little reuse stay quiet. A new kind of traffic fires once.",
        "triage",
        "overview",
        "Later turns that reused",
    ),
    Alert(
        "KvdiagTokensLost",
        f'{LOST_SHARE}{{cause!="below_threshold"}} > 0.3 {_FLOOR}',
        "ticket",
        "10m",
        "{{ $value | humanizePercentage }} of prompt tokens were computed again because of {{ $labels.cause }}",
        "Tokens that decode still held. The label names the cause and so the page. What is below the recompute threshold is "
        "computed again on purpose.",
        "{{ $labels.cause }}",
        "overview",
        "Tokens lost by cause",
    ),
)


def _by_share() -> tuple[Alert, ...]:
    return tuple(
        Alert(
            f"Kvdiag{camel(budget.cause)}",
            f'{CAUSE_SHARE}{{cause="{budget.cause}"}} > {budget.share:g} {_FLOOR}',
            budget.severity,
            "5m",
            f"{{{{ $value | humanizePercentage }}}} of turns ended with {budget.cause} (budget {budget.share:.0%})",
            budget.why,
            budget.cause,
            f"runbook-{budget.cause}",
            "Share of all turns",
            budget.cause,
        )
        for budget in BUDGETS
    )


def _by_time(settings: Settings) -> tuple[Alert, ...]:
    """Return the alerts on what takes long: no turn is counted with these causes where logs are not read."""
    waits, own = settings.ttft_objective / 2, settings.ttft_objective / 10
    return (
        Alert(
            "KvdiagQueueing",
            f"{QUEUE_TIME} > {waits:g} and on (job, instance) "
            "sum by (job, instance) (increase(vllm:request_queue_time_seconds_count[15m])) > 20",
            "ticket",
            "5m",
            '{{ printf "%.1f" $value }} s in the queue of {{ $labels.instance }} on average (15 minutes)',
            "Half of the objective is gone before a request is scheduled. Batch traffic that may wait: raise the objective.",
            "queueing",
            "retention",
            "Time in the queue, mean",
            "queueing",
        ),
        Alert(
            "KvdiagSlowTransfer",
            f"{SPEED} < 0.25 * avg_over_time({SPEED}[1d] offset 1h) and on (job, instance, direction) "
            "sum by (job, instance, direction) (increase(kvdiag_transfer_seconds_count[15m])) > 20",
            "ticket",
            "10m",
            "{{ $labels.instance }} reads {{ $labels.direction }} at {{ $value | humanize1024 }}B/s, "
            "less than a quarter of yesterday's speed",
            "Against its own day before. Transfers that became much smaller are slower too, and fire once.",
            "slow_transfer",
            "transfers",
            "Speed while transferring",
            "slow_transfer",
        ),
        Alert(
            "KvdiagRouterOverhead",
            f"{OWN_TIME} > {own:g} and on (job, instance) "
            "sum by (job, instance) (increase(kvdiag_router_seconds_count[15m])) > 20",
            "ticket",
            "5m",
            "Turns spend {{ $value | humanizeDuration }} in {{ $labels.instance }} itself (p95, 15 minutes)",
            "A router takes milliseconds: its core is full, or its handle store answers slowly.",
            "router_overhead",
            "router",
            "Time in the router itself",
            "router_overhead",
        ),
    )


_BY_COUNT: Final = (
    Alert(
        "KvdiagSuspectKv",
        'sum(increase(kvdiag_expiries_total{kind="read_after_release"}[10m])) > 0',
        "page",
        "0m",
        '{{ printf "%.0f" $value }} reads of freed KV blocks in 10 minutes: answers may be wrong',
        "No budget and no waiting: a wrong answer with HTTP 200 has no other sign.",
        "suspect_kv",
        "overview",
        "Suspect answers",
        "suspect_kv",
    ),
    Alert(
        "KvdiagExpiredHandoff",
        'sum by (instance) (increase(kvdiag_expiries_total{kind="lease_lapsed"}[15m])) > 5',
        "ticket",
        "0m",
        '{{ printf "%.0f" $value }} leases lapsed on {{ $labels.instance }} before decode had read (15 minutes)',
        "Decode is late or gone. Conversations that end on decode are another kind and never counted here.",
        "expired_handoff",
        "retention",
        "Expiries by meaning",
        "expired_handoff",
    ),
    Alert(
        "KvdiagTransferFailed",
        "sum by (instance, direction) (increase(kvdiag_transfer_failures_total[15m])) > 3",
        "ticket",
        "0m",
        '{{ printf "%.0f" $value }} transfers failed on {{ $labels.instance }} ({{ $labels.direction }}, 15 minutes)',
        "More than a restart of one peer leaves behind.",
        "transfer_failed",
        "transfers",
        "Failed transfers",
        "transfer_failed",
    ),
    Alert(
        "KvdiagRetainedSqueeze",
        f"avg_over_time({HELD_SHARE}[5m]) > 0.3 and on (job, instance) avg_over_time(vllm:num_requests_waiting[5m]) > 1",
        "ticket",
        "10m",
        "{{ $value | humanizePercentage }} of the KV cache of {{ $labels.instance }} is held for later turns "
        "while requests wait",
        "Both at once: much memory held is fine while nothing waits. Averages, since both come in waves.",
        "kv_pressure",
        "retention",
        "Share of the cache held, by engine",
        "kv_pressure",
    ),
    Alert(
        "KvdiagEventsDropped",
        "sum by (job, sink) (increase(kvdiag_dropped_events_total[15m])) > 100",
        "info",
        "15m",
        '{{ printf "%.0f" $value }} events lost at {{ $labels.sink }} of {{ $labels.job }} in 15 minutes',
        "Serving is fine; diagnosis is blind in part (disk full, collector down).",
        "unexplained",
        "router",
        "Events dropped",
        "unexplained",
    ),
)


_COMPARED: Final = ("bidirectional", "block_size", "vllm", "nixl")
_DIFFER: Final = " or ".join(
    f'label_replace(count(count by ({name}) (kvdiag_connector_info)) > 1, "setting", "{name}", "", "")'
    for name in _COMPARED
)
_SET_UP: Final = (
    Alert(
        "KvdiagConfigMismatch",
        _DIFFER,
        "ticket",
        "30m",
        '{{ printf "%.0f" $value }} different values of {{ $labels.setting }} among prefill and decode engines',
        "Waits half an hour because a rollout mixes versions for a while.",
        '{{ if eq $labels.setting "bidirectional" }}feature_off{{ else }}peer_unreachable{{ end }}',
        "overview",
        "Prefill engines with connector",
    ),
    Alert(
        "KvdiagTtlOrder",
        "max(kvdiag_router_handle_ttl_seconds) > on () min(kvdiag_retention_ttl_seconds > 0) - 5",
        "ticket",
        "10m",
        'The router sends handles up to {{ printf "%.0f" $value }} s old, longer than decode keeps the blocks',
        "Prefill refuses what is within 5 s of decode's TTL: those reads are declined, on stock vLLM with HTTP 500.",
        "expired_remote_read",
        "retention",
        "TTL: decode and router",
        "expired_remote_read",
    ),
    Alert(
        "KvdiagConnectorAbsent",
        "(count by (job, instance) (vllm:num_requests_running) unless on (job, instance) kvdiag_connector_info) "
        "and on (job) count by (job) (kvdiag_connector_info)",
        "ticket",
        "15m",
        "{{ $labels.instance }} serves without kvdiag's connector while others of {{ $labels.job }} have it",
        "It takes part in neither reuse nor diagnosis: kv_connector and kv_connector_module_path are missing in its "
        "--kv-transfer-config.",
        "feature_off",
        "overview",
        "Decode engines with connector",
        "feature_off",
    ),
    Alert(
        "KvdiagMetricsAbsent",
        "count by (job) (last_over_time(kvdiag_build_info[1d])) unless on (job) count by (job) (kvdiag_build_info)",
        "ticket",
        "10m",
        "No kvdiag metrics from {{ $labels.job }} any more (there were some within a day)",
        "Every other alert is blind for this job. It ends by itself a day after a job was taken away on purpose.",
        "triage",
        "overview",
        "Routers",
    ),
    Alert(
        "KvdiagRouterStoreDown",
        "min by (job, instance) (kvdiag_router_store_up) == 0",
        "ticket",
        "2m",
        "The handle store of {{ $labels.instance }} does not answer: no turn reuses anything",
        "Serving goes on without reuse, and recovers by itself.",
        "missing_metadata",
        "router",
        "Handle store",
        "missing_metadata",
    ),
)
