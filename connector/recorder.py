"""One engine's items, received in the API server: counted, written to the event log, and traced."""

from __future__ import annotations

import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from kvdiag import __version__
from kvdiag.causes import CAUSES
from kvdiag.events import KvEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdiag.connector.outbox import Item
    from kvdiag.connector.settings import Settings
    from kvdiag.exporters.jsonl import JsonlSink
    from kvdiag.exporters.prometheus import Metrics

PEERS: Final = 64
"""Peers with a label value of their own."""


class EngineRecorder:
    """Turns items into metrics and lines. Raises for an item that it cannot read; the caller guards."""

    def __init__(
        self,
        metrics: Metrics,
        settings: Settings,
        sink: JsonlSink | None,
        trace: Callable[[KvEvent, str, float], None] | None = None,
    ) -> None:
        self._counter = cache(metrics.counter)  # a look-up costs more than the increment
        self._gauge = cache(metrics.gauge)
        self._histogram = cache(metrics.histogram)
        self._settings = settings
        self._sink = sink
        self._trace = trace
        self._peers: set[str] = set()

    def introduce(self, block_size: str, vllm: str, nixl: str) -> None:
        """Expose the effective configuration."""
        settings = self._settings
        self._gauge(
            "kvdiag_connector_info",
            settings.role or "both",
            _flag(settings.bidirectional),
            f"{settings.decode_ttl_s:g}",
            str(settings.recompute_threshold),
            settings.failure_policy,
            block_size,
            settings.engine_id,
            vllm,
            nixl,
            "on" if settings.verify else "off",
        ).set(1)
        self._gauge("kvdiag_build_info", __version__).set(1)
        if settings.role != "prefill":  # it would be compared with the router's, and is never used there
            self._gauge("kvdiag_retention_ttl_seconds").set(settings.decode_ttl_s)

    def dropped(self, sink: str) -> None:
        """Count an event that a sink could not take."""
        self._counter("kvdiag_dropped_events_total", sink).inc()

    def record(self, item: Item) -> None:
        """Record one item of the outbox."""
        self._RECORDERS[item[0]](self, *item[1:])

    def _event(self, fields: dict[str, Any]) -> None:
        traceparent = fields.pop("traceparent", None)
        t = fields.pop("t")
        moment = datetime.datetime.fromtimestamp(t, datetime.UTC)
        fields["ts"] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        event = msgspec.convert(fields, KvEvent)
        count = self._COUNTERS.get(event.kind)
        if count is not None:
            count(self, event)
        if self._sink is not None:
            self._sink.write(event)
        if self._trace is not None and traceparent is not None:
            self._trace(event, traceparent, t)

    def _count_match(self, event: KvEvent) -> None:
        if event.role != "prefill":
            return
        self._counter("kvdiag_matches_total", *_pair(event)).inc()
        local, remote = event.local_tokens or 0, event.tokens or 0
        counts = {"local": local, "remote": remote, "computed": max(0, (event.prompt_tokens or 0) - local - remote)}
        for source, tokens in counts.items():
            self._counter("kvdiag_matched_tokens_total", source).inc(tokens)
        self._count_lost(event)

    def _count_lost(self, event: KvEvent) -> None:
        if event.lost_tokens and event.direction == "decode_to_prefill":
            self._counter("kvdiag_lost_tokens_total", *_pair(event)).inc(event.lost_tokens)

    def _count_transfer(self, event: KvEvent) -> None:
        direction = event.direction or ""
        size, seconds = event.bytes or 0, event.seconds or 0.0
        self._counter("kvdiag_transfer_bytes_total", direction).inc(size)
        self._counter("kvdiag_transfer_descriptors_total", direction).inc(event.descriptors or 0)
        self._histogram("kvdiag_transfer_seconds", direction).observe(seconds)
        self._histogram("kvdiag_transfer_post_seconds", direction).observe(event.post_seconds or 0.0)
        self._histogram("kvdiag_read_wait_seconds", direction).observe(event.wait_s or 0.0)
        peer = self._peer(event.peer)
        self._counter("kvdiag_peer_transfers_total", direction, peer).inc()
        self._counter("kvdiag_peer_transfer_bytes_total", direction, peer).inc(size)
        self._counter("kvdiag_peer_transfer_seconds_total", direction, peer).inc(seconds)
        # From now on at 0: a series that begins with its first failure has no increase.
        self._counter("kvdiag_peer_transfer_failures_total", direction, peer)

    def _peer(self, peer: str | None) -> str:
        """Return the label value of a peer: its address, for the first so many."""
        if peer is None:
            return "unknown"
        if len(self._peers) < PEERS:
            self._peers.add(peer)
        return peer if peer in self._peers else "other"

    def _count_failure(self, event: KvEvent) -> None:
        if event.cause == "suspect_kv":
            self._expiry("read_after_release")
            return
        direction = event.direction or ""
        self._counter("kvdiag_transfer_failures_total", direction).inc()
        self._counter("kvdiag_peer_transfer_failures_total", direction, self._peer(event.peer)).inc()
        self._count_lost(event)

    def _count_decline(self, event: KvEvent) -> None:
        if event.cause == "expired_remote_read":
            self._expiry("read_declined")
        self._count_lost(event)

    def _count_release(self, event: KvEvent) -> None:
        if event.release == "expired":
            self._expiry("lease_lapsed" if event.direction == "prefill_to_decode" else "idle_ended")
        if event.direction != "decode_to_prefill" or event.release is None or event.seconds is None:
            return
        self._histogram("kvdiag_retention_seconds", event.release).observe(event.seconds)
        held = (event.bytes or 0) * event.seconds
        self._counter("kvdiag_retained_byte_seconds_total", event.release).inc(held)

    def _expiry(self, kind: str) -> None:
        self._counter("kvdiag_expiries_total", kind).inc()

    def _cache(self, blocks: int) -> None:
        self._gauge("kvdiag_kv_cache_blocks").set(blocks)

    def _retained(self, requests: int, blocks: int, size: int) -> None:
        self._gauge("kvdiag_retained_requests").set(requests)
        self._gauge("kvdiag_retained_blocks").set(blocks)
        self._gauge("kvdiag_retained_bytes").set(size)

    def _kept(self, kept: int, parted: int) -> None:
        self._counter("kvdiag_response_tokens_total", "yes").inc(kept)
        self._counter("kvdiag_response_tokens_total", "no").inc(parted)

    def _unverified(self) -> None:
        self._counter("kvdiag_unverified_reads_total").inc()

    def _handshake(self, _engine: str, seconds: float, _cause: str | None, _detail: str | None) -> None:
        self._histogram("kvdiag_handshake_seconds").observe(seconds)

    def _dropped(self, count: int) -> None:
        self._counter("kvdiag_dropped_events_total", "queue").inc(count)

    def _error(self, _where: str) -> None:
        self._counter("kvdiag_connector_errors_total").inc()

    _RECORDERS: ClassVar[dict[str, Callable[..., None]]] = {
        "event": _event,
        "cache": _cache,
        "retained": _retained,
        "kept": _kept,
        "unverified": _unverified,
        "handshake": _handshake,
        "dropped": _dropped,
        "error": _error,
    }
    _COUNTERS: ClassVar[dict[str, Callable[[EngineRecorder, KvEvent], None]]] = {
        "match": _count_match,
        "transfer": _count_transfer,
        "failure": _count_failure,
        "decline": _count_decline,
        "release": _count_release,
    }


def _pair(event: KvEvent) -> tuple[str, str]:
    """Return cause and detail as label values, only ones that the causes table knows."""
    cause = CAUSES.get(event.cause or "")
    if cause is None:
        return "unexplained", ""
    return cause.name, event.detail if event.detail in cause.details else ""


def _flag(value: bool) -> str:  # noqa: FBT001 - formats a boolean
    return "true" if value else "false"
