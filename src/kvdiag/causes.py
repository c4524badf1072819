"""The causes: why a turn reused, could not reuse, or was slow.

One table serves label values, report values, runbook names, docs and alerts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

Direction = Literal["decode_to_prefill", "prefill_to_decode"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("decode_to_prefill", "prefill_to_decode")

Confidence = Literal["certain", "likely", "possible"]
CONFIDENCES: Final[tuple[Confidence, ...]] = ("certain", "likely", "possible")

Kind = Literal["outcome", "fault"]
"""An outcome is how a well-working turn ends; a fault is worth somebody's attention."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause, its details (each with its meaning) and what to change."""

    name: str
    meaning: str
    kind: Kind = "fault"
    next_step: str = ""
    details: dict[str, str] = field(default_factory=dict)
    next_steps: dict[str, str] = field(default_factory=dict)
    """Overrides `next_step` for a detail."""

    def remedy(self, detail: str | None = None) -> str:
        """Return the setting to change, for this detail where it has one of its own."""
        return self.next_steps.get(detail or "", self.next_step)


_TABLE: Final = (
    Cause("first_turn", "nothing to reuse yet", kind="outcome"),
    Cause("local_hit", "prefill's own prefix cache covered it", kind="outcome"),
    Cause("remote_hit", "read back from decode", kind="outcome"),
    Cause(
        "below_threshold",
        "what remained after the local match was under kv_recompute_threshold",
        kind="outcome",
        next_step="lower kv_recompute_threshold on prefill if reading these tokens would be faster than computing them",
    ),
    Cause(
        "missing_metadata",
        "prefill got no usable handle",
        next_step="make the router keep decode's kv_transfer_params per conversation and send them with the next turn",
        details={
            "no_conversation_id": "the client sent nothing that links its turns",
            "router_lost_state": "the router held no handle for a conversation that had one (restart, second replica)",
            "not_returned": "decode's answer carried no kv_transfer_params",
            "incomplete": "the handle lacked a field that prefill needs",
            "consumed": "the handle had been used already (fork, retry, hedged request)",
            "stale": "the router discarded the handle by its own TTL",
            "unsupported": "the request (n > 1, several prompts, a response kept on decode) cannot read a handle",
            "holdout": "withheld on purpose: the conversation belongs to the arm that measures turns without reuse",
        },
        next_steps={
            "no_conversation_id": "send X-Conversation-ID (or body field conversation_id) with every turn",
            "router_lost_state": "keep handles in a shared store (router store = redis) so that restarts and replicas see them",
            "not_returned": (
                "set bidirectional_kv_xfer on decode; for streaming answers before vLLM 0.33 load kvdiag's plug-in "
                "(VLLM_PLUGINS=kvdiag_streaming) or upgrade"
            ),
            "incomplete": "forward decode's kv_transfer_params unchanged, remote_num_tokens included",
            "consumed": "send forks and retries without the handle; it can be read once only",
            "unsupported": "ask for one answer to one prompt a request where reuse matters",
            "holdout": "nothing to mend: lower the router's holdout share once the difference is measured",
            "stale": "raise the router's handle TTL (below decoder_kv_blocks_ttl minus 5 s), or raise both for longer gaps",
        },
    ),
    Cause(
        "feature_off",
        "bidirectional transfer or the connector is not on",
        next_step='set "bidirectional_kv_xfer": true in kv_connector_extra_config on prefill and on decode',
        details={
            "prefill": "off on prefill",
            "decode": "off on decode",
            "no_connector": "no KV connector is configured",
        },
        next_steps={
            "prefill": 'set "bidirectional_kv_xfer": true in prefill\'s kv_connector_extra_config',
            "decode": 'set "bidirectional_kv_xfer": true in decode\'s kv_connector_extra_config',
            "no_connector": "start the engine with --kv-transfer-config (kv_connector NixlConnector)",
        },
    ),
    Cause(
        "prefix_diverged",
        "the prompt no longer starts with the tokens that decode holds",
        next_step="send the history unchanged, token for token",
        details={
            "in_response": "parts inside the last response (re-tokenised, reasoning stripped)",
            "in_history": "parts earlier (edited, compacted, re-rendered)",
        },
        next_steps={
            "in_response": "keep the last response as generated (do not strip reasoning, or pass token ids); else expect only the earlier part to be reused",
            "in_history": "compact or edit the history less often; expect a recompute after each such edit",
        },
    ),
    Cause(
        "expired_remote_read",
        "decode's blocks were past their TTL",
        next_step=(
            "set the router's handle TTL below decoder_kv_blocks_ttl minus 5 s; raise decoder_kv_blocks_ttl if the gaps "
            "between turns are longer"
        ),
        details={
            "declined": "prefill declined the read; kvdiag's connector computes the turn, stock vLLM does as kv_load_failure_policy says",
            "failed_request": "kv_load_failure_policy=fail turned the decline into an error",
        },
    ),
    Cause(
        "expired_handoff",
        "prefill's lease lapsed before decode read it",
        next_step="relieve decode's queue, or raise kv_lease_duration (VLLM_NIXL_ABORT_REQUEST_TIMEOUT before 0.22) on prefill",
    ),
    Cause(
        "suspect_kv",
        "blocks were read after they were freed: the answer may be wrong",
        next_step="forward remote_blocks_expiry_time unchanged, use each handle once, and discard the answers named here",
        details={"read_after_release": "the owner had released the blocks before the read completed"},
    ),
    Cause(
        "peer_unreachable",
        "the engine behind the handle is not there or not the same",
        next_step="check that the engine named in the evidence runs and that its side channel can be reached",
        details={
            "restarted": "the engine was restarted, its handles are void",
            "handshake_failed": "the NIXL handshake did not complete",
            "incompatible": "the engines differ in version, model or KV layout",
        },
        next_steps={
            "restarted": "void the handles of a restarted engine (kvdiag's router fences by engine id) and find out why it restarted",
            "handshake_failed": "set VLLM_NIXL_SIDE_CHANNEL_HOST to an address that the peer can reach and open its port",
            "incompatible": "run the same vLLM, NIXL, model, dtype and block size on prefill and decode",
        },
    ),
    Cause(
        "transfer_failed",
        "NIXL reported a failed transfer",
        next_step="read the NIXL status in the evidence: check the fabric, UCX transports and the peer's health",
        details={"stalled": "the read neither arrived nor failed within kvdiag_read_timeout_s and was given up"},
        next_steps={"stalled": "look at the peer first: an engine that is frozen or overloaded serves no read"},
    ),
    Cause(
        "slow_transfer",
        "moved, but slower than recomputing or than its own baseline",
        next_step="check UCX_TLS and the NIC: a fall-back to TCP or missing CUDA support in UCX is the usual reason",
        details={
            "decode_to_prefill": "the read-back from decode was slow",
            "prefill_to_decode": "the hand-off to decode was slow",
            "handshake": "the one-off set-up with a new peer",
        },
        next_steps={"handshake": "warm each prefill-decode pair up before it takes traffic"},
    ),
    Cause(
        "queueing",
        "waited for a slot",
        next_step="add capacity to the role that queues, or send it less",
        details={"prefill": "waited on prefill", "decode": "waited on decode"},
        next_steps={"prefill": "add prefill capacity or spread the load", "decode": "add decode capacity"},
    ),
    Cause(
        "kv_pressure",
        "cache memory was short",
        next_step="give the engine more KV cache memory or send it fewer requests",
        details={
            "preempted": "running requests were preempted",
            "retained_blocks": "blocks held for later turns left too little for running ones",
            "capacity": "the running requests themselves fill the cache",
        },
        next_steps={
            "retained_blocks": "lower decoder_kv_blocks_ttl on decode (kvdiag tune finds the value), or add cache memory"
        },
    ),
    Cause(
        "compute_bound",
        "the new tokens themselves explain the time",
        next_step="nothing to mend in KV transfer: fewer new tokens a turn, or faster prefill",
    ),
    Cause(
        "client",
        "the client drained slowly, went away or asked for what the engine refuses",
        next_step="look at the client: its time-outs, its network, its reading of the stream, its requests",
        details={
            "slow": "drained slowly",
            "aborted": "went away",
            "refused": "sent a request that the engine refused (4xx)",
        },
    ),
    Cause(
        "upstream_error",
        "an engine answered with an error",
        next_step="read the engine's own log at the time of the error",
    ),
    Cause(
        "router_overhead",
        "the router itself took the time",
        next_step="give the router a core of its own, or add a replica",
    ),
    Cause(
        "unexplained",
        "nothing seen explains it",
        next_step="add the inputs listed as missing and classify again",
    ),
)

CAUSES: Final[dict[str, Cause]] = {cause.name: cause for cause in _TABLE}
"""Every cause by its name, in the order in which they are documented."""

OUTCOMES: Final[frozenset[str]] = frozenset(cause.name for cause in _TABLE if cause.kind == "outcome")
"""Causes that are not faults."""


def label_pairs() -> tuple[tuple[str, str], ...]:
    """Return every valid (cause, detail) pair, detail "" included, for pre-created metric children."""
    return tuple((cause.name, detail) for cause in _TABLE for detail in ("", *cause.details))
