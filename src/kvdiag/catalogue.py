"""Every metric, once: name, type, unit, labels and their bound, buckets, help, emitter.

Connector, router, docs, dashboards and rules read this table; nothing else names a metric.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from kvdiag.causes import DIRECTIONS, OUTCOMES, label_pairs
from kvdiag.events import PROMPT_BUCKETS, TURN_BUCKETS

MetricType = Literal["counter", "gauge", "histogram", "info"]
Emitter = Literal["connector", "router", "log"]
"""`log`: `kvdiag export`, which reads what stock engines and routers wrote."""
MultiprocessMode = Literal["livesum", "livemax", "livemostrecent"]

TTFT_BUCKETS: Final = (
    0.01,
    0.025,
    0.05,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    1.5,
    2,
    3,
    5,
    7.5,
    10,
    20,
    40,
    80,
)
TRANSFER_BUCKETS: Final = (
    0.0001,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
)
GAP_BUCKETS: Final = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 240, 480, 900, 1800, 3600)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family. `labels` maps each label to its values, or to None where they are only known at run time."""

    name: str
    type: MetricType
    help: str
    emitter: tuple[Emitter, ...]
    labels: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    label_rows: tuple[tuple[str, ...], ...] = ()
    """Valid combinations to pre-create, where not every product of label values is valid."""
    buckets: tuple[float, ...] = ()
    unit: str = ""
    bound: str = ""
    """What bounds the labels whose values are only known at run time."""
    multiprocess_mode: MultiprocessMode = "livesum"
    since: str = "0.1.0"


_CAUSES: Final = tuple(dict.fromkeys(cause for cause, _ in label_pairs()))
_CAUSE_DETAIL_TURN: Final = tuple((c, d, t) for c, d in label_pairs() for t in TURN_BUCKETS)
_ARMS: Final = ("reuse", "holdout")
# Only how a well-working turn ends: every cause would be 4,000 series a router, most of them empty for ever.
_TTFT_ROWS: Final = tuple((c, t, a) for c in sorted(OUTCOMES) for t in TURN_BUCKETS for a in _ARMS)

_TABLE: Final = (
    Metric(
        "kvdiag_turns_total",
        "counter",
        "Turns by why they reused, could not reuse, or were slow.",
        ("router", "log"),
        {"cause": None, "detail": None, "turn": TURN_BUCKETS},
        _CAUSE_DETAIL_TURN,
        bound="the causes table",
    ),
    Metric(
        "kvdiag_turn_ttft_seconds",
        "histogram",
        "Time from request to first token, as the router measured it.",
        ("router", "log"),
        {"cause": _CAUSES, "turn": TURN_BUCKETS, "arm": _ARMS},
        _TTFT_ROWS,
        buckets=TTFT_BUCKETS,
        unit="seconds",
    ),
    Metric(
        "kvdiag_turn_ttft_by_prompt_seconds",
        "histogram",
        "Time to first token of later turns by prompt length, reuse and arm of the experiment.",
        ("router", "log"),
        {"prompt": PROMPT_BUCKETS, "reused": ("yes", "no"), "arm": _ARMS},
        buckets=TTFT_BUCKETS,
        unit="seconds",
    ),
    Metric(
        "kvdiag_turn_seconds",
        "histogram",
        "Time from request to the end of the answer.",
        ("router",),
        buckets=TTFT_BUCKETS,
        unit="seconds",
    ),
    Metric(
        "kvdiag_router_seconds",
        "histogram",
        "Time of a turn in the router itself, until the first byte of the answer went out.",
        ("router",),
        buckets=TRANSFER_BUCKETS,
        unit="seconds",
    ),
    Metric(
        "kvdiag_prefill_seconds",
        "histogram",
        "Time of the prefill call.",
        ("router", "log"),
        buckets=TTFT_BUCKETS,
        unit="seconds",
    ),
    Metric(
        "kvdiag_handoff_seconds",
        "histogram",
        "Time from prefill's answer to decode's first token.",
        ("router",),
        buckets=TTFT_BUCKETS,
        unit="seconds",
    ),
    Metric(
        "kvdiag_inter_turn_gap_seconds",
        "histogram",
        "Time between the end of a turn and the start of the next one.",
        ("router", "log"),
        buckets=GAP_BUCKETS,
        unit="seconds",
    ),
    Metric(
        "kvdiag_prompt_tokens_total",
        "counter",
        "Prompt tokens by where their KV came from.",
        ("router", "log"),
        {"source": ("local", "remote", "computed", "lost")},
        unit="tokens",
    ),
    Metric(
        "kvdiag_lost_tokens_total",
        "counter",
        "Tokens held on decode yet recomputed on prefill.",
        ("connector", "log"),
        {"cause": None, "detail": None},
        label_pairs(),
        unit="tokens",
        bound="the causes table",
    ),
    Metric(
        "kvdiag_transfer_bytes_total",
        "counter",
        "Bytes read by this engine.",
        ("connector", "log"),
        {"direction": DIRECTIONS},
        unit="bytes",
    ),
    Metric(
        "kvdiag_transfer_seconds",
        "histogram",
        "NIXL transfer time per request.",
        ("connector", "log"),
        {"direction": DIRECTIONS},
        buckets=TRANSFER_BUCKETS,
        unit="seconds",
    ),
    Metric(
        "kvdiag_transfer_post_seconds",
        "histogram",
        "NIXL time to post a transfer, before any byte moves, per request.",
        ("connector",),
        {"direction": DIRECTIONS},
        buckets=TRANSFER_BUCKETS,
        unit="seconds",
    ),
    Metric(
        "kvdiag_transfer_descriptors_total",
        "counter",
        "NIXL descriptors (separate memory regions) read by this engine.",
        ("connector",),
        {"direction": DIRECTIONS},
    ),
    Metric(
        "kvdiag_transfer_failures_total",
        "counter",
        "Transfers that NIXL reported as failed.",
        ("connector",),
        {"direction": DIRECTIONS},
    ),
    *(
        Metric(
            f"kvdiag_peer_{name}_total",
            "counter",
            f"{help_text} by the engine at the other end.",
            ("connector",),
            {"direction": DIRECTIONS, "peer": None},
            unit=unit,
            bound="the engines that this engine has read from, by engine id, or HOST:PORT with kvdiag_peer_addresses; more than 64 are folded into peer=other",
        )
        for name, unit, help_text in (
            ("transfers", "", "Transfers finished"),
            ("transfer_bytes", "bytes", "Bytes read"),
            ("transfer_seconds", "seconds", "NIXL transfer time"),
            ("transfer_failures", "", "Transfers failed"),
        )
    ),
    Metric(
        "kvdiag_retained_requests",
        "gauge",
        "Finished requests whose blocks are held for a later turn.",
        ("connector",),
        multiprocess_mode="livemostrecent",  # an engine tells any one of its API servers
    ),
    Metric(
        "kvdiag_retained_blocks",
        "gauge",
        "KV blocks held for later turns.",
        ("connector",),
        multiprocess_mode="livemostrecent",
    ),
    Metric(
        "kvdiag_retained_bytes",
        "gauge",
        "KV bytes held for later turns.",
        ("connector",),
        unit="bytes",
        multiprocess_mode="livemostrecent",
    ),
    Metric("kvdiag_kv_cache_blocks", "gauge", "KV blocks that this engine's cache has.", ("connector",)),
    Metric(
        "kvdiag_retention_ttl_seconds",
        "gauge",
        "Configured time for which blocks are held for a later turn.",
        ("connector",),
        unit="seconds",
        multiprocess_mode="livemax",
    ),
    Metric(
        "kvdiag_retained_byte_seconds_total",
        "counter",
        "Memory held for later turns, by how the retention ended.",
        ("connector",),
        {"release": ("read", "expired", "notified")},
    ),
    Metric(
        "kvdiag_retention_seconds",
        "histogram",
        "How long blocks were held, by how the retention ended.",
        ("connector",),
        {"release": ("read", "expired", "notified")},
        buckets=GAP_BUCKETS,
        unit="seconds",
    ),
    Metric(
        "kvdiag_matches_total",
        "counter",
        "Prefill requests by what the connector decided about reading decode's blocks back.",
        ("connector",),
        {"cause": None, "detail": None},
        label_pairs(),
        bound="the causes table",
    ),
    Metric(
        "kvdiag_matched_tokens_total",
        "counter",
        "Prompt tokens of prefill requests by where their KV was found when the request was admitted.",
        ("connector",),
        {"source": ("local", "remote", "computed")},
        unit="tokens",
    ),
    Metric(
        "kvdiag_response_tokens_total",
        "counter",
        "Tokens that decode generated in the previous turn, by whether the next prompt kept them as they were.",
        ("connector",),
        {"kept": ("yes", "no")},
        unit="tokens",
    ),
    Metric(
        "kvdiag_read_wait_seconds",
        "histogram",
        "Time from claiming remote tokens until they had arrived, handshake and polling included.",
        ("connector",),
        {"direction": DIRECTIONS},
        buckets=TRANSFER_BUCKETS,
        unit="seconds",
    ),
    Metric(
        "kvdiag_handshake_seconds",
        "histogram",
        "NIXL handshakes with a new peer.",
        ("connector",),
        buckets=TRANSFER_BUCKETS,
        unit="seconds",
    ),
    Metric(
        "kvdiag_expiries_total",
        "counter",
        "What upstream counts as one: prefill's lease lapsed, a conversation ended idle on decode, prefill declined a read, "
        "blocks were read after their release.",
        ("connector", "log"),
        {"kind": ("lease_lapsed", "idle_ended", "read_declined", "read_after_release")},
    ),
    Metric(
        "kvdiag_unverified_reads_total",
        "counter",
        "Reads from decode without a digest to compare with (stock connector there, or verification off).",
        ("connector",),
    ),
    Metric(
        "kvdiag_connector_errors_total",
        "counter",
        "Exceptions inside kvdiag's own code, each swallowed so that the request went on.",
        ("connector",),
    ),
    Metric("kvdiag_router_handles", "gauge", "Handles that the router holds.", ("router",)),
    Metric(
        "kvdiag_router_handle_ttl_seconds",
        "gauge",
        "Age up to which the router sends a handle.",
        ("router",),
        unit="seconds",
        multiprocess_mode="livemax",
    ),
    Metric(
        "kvdiag_router_store_up",
        "gauge",
        "Set to 1 while the handle store answers, 0 while the router serves without reuse.",
        ("router",),
        multiprocess_mode="livemostrecent",
    ),
    Metric(
        "kvdiag_router_evictions_total",
        "counter",
        "Live handles that the in-process store gave up for want of room.",
        ("router",),
    ),
    Metric(
        "kvdiag_router_lookups_total",
        "counter",
        "Handle look-ups by result.",
        ("router",),
        {
            "result": (
                "hit",
                "first_turn",
                "no_conversation_id",
                "router_lost_state",
                "not_returned",
                "incomplete",
                "consumed",
                "stale",
                "restarted",
                "in_history",
                "unsupported",
                "holdout",
            )
        },
    ),
    Metric(
        "kvdiag_router_retries_total",
        "counter",
        "Calls repeated without the handle or on another engine.",
        ("router",),
        {
            "reason": (
                "prefill_error",
                "prefill_timeout",
                "prefill_unreachable",
                "decode_error",
                "decode_timeout",
                "decode_unreachable",
            )
        },
    ),
    Metric(
        "kvdiag_router_upstream_errors_total",
        "counter",
        "Errors answered by engines.",
        ("router",),
        {"role": ("prefill", "decode")},
    ),
    Metric(
        "kvdiag_connector_info",
        "gauge",
        "The connector's effective configuration; always 1.",
        ("connector",),
        {
            "role": None,
            "bidirectional": None,
            "ttl_seconds": None,
            "recompute_threshold": None,
            "failure_policy": None,
            "block_size": None,
            "engine_id": None,
            "vllm": None,
            "nixl": None,
            "verify": ("on", "off"),
        },
        bound="one series per engine",
        multiprocess_mode="livemax",
    ),
    Metric(
        "kvdiag_build_info",
        "gauge",
        "kvdiag's version; always 1.",
        ("connector", "router", "log"),
        {"version": None},
        bound="one series per process",
        multiprocess_mode="livemax",
    ),
    Metric(
        "kvdiag_dropped_events_total",
        "counter",
        "Events dropped so that serving never waits for telemetry.",
        ("connector", "router"),
        {"sink": ("queue", "jsonl", "otlp")},
    ),
)

METRICS: Final[dict[str, Metric]] = {metric.name: metric for metric in _TABLE}
"""Every metric by name."""
