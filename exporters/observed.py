"""Turns that somebody else observed, as metrics: what `kvdiag export` makes of logs."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

from kvdiag import __version__
from kvdiag.causes import OUTCOMES
from kvdiag.events import prompt_bucket, turn_bucket
from kvdiag.exporters.prometheus import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import CollectorRegistry

REMEMBERED: Final = 100_000
"""Turns that are known to have been counted; the oldest are forgotten."""
_EXPIRIES: Final = {
    "expired_handoff": "lease_lapsed",
    "expired_remote_read": "read_declined",
    "suspect_kv": "read_after_release",
}
"""What a turn's cause says of blocks that were not held any more: its page and its alert go by these."""


class ObservedTurn(Protocol):
    """One turn; seconds and counts, None where the observer cannot tell."""

    request_id: str
    turn: int | None
    cause: str
    detail: str | None
    prompt_tokens: int | None
    local_tokens: int | None
    remote_tokens: int | None
    computed_tokens: int | None
    lost_tokens: int | None
    prefill_s: float | None
    ttft_s: float | None
    gap_s: float | None
    transfer_bytes: int | None
    transfer_s: float | None


class TurnCounter:
    """Counts each turn once, when nothing new has been said about it for `settle_s` seconds.

    Logs tell a turn's cause piece by piece: what looks lost at first may turn out to have been read back.
    """

    def __init__(self, registry: CollectorRegistry, *, settle_s: float) -> None:
        self._metrics = Metrics("log", registry)
        self._metrics.gauge("kvdiag_build_info", __version__).set(1)
        self._settle_s = settle_s
        self._open: dict[str, tuple[tuple[object, ...], float]] = {}
        self._counted: OrderedDict[str, None] = OrderedDict()

    def skip(self, turns: Iterable[ObservedTurn]) -> None:
        """Take these turns as counted: a restart must not count history again."""
        for turn in turns:
            self._remember(turn.request_id)

    def see(self, turns: Iterable[ObservedTurn], now: float) -> None:
        """Look at every turn known at `now` (seconds, any clock that only rises) and count those that have settled."""
        for turn in turns:
            if turn.request_id in self._counted:
                continue
            said = (turn.cause, turn.detail, turn.ttft_s, turn.prefill_s, turn.remote_tokens, turn.lost_tokens)
            before, since = self._open.get(turn.request_id, (None, now))
            if said != before:
                self._open[turn.request_id] = (said, now)
            elif now - since >= self._settle_s:
                self._remember(turn.request_id)
                self._count(turn)

    def _remember(self, request_id: str) -> None:
        self._open.pop(request_id, None)
        self._counted[request_id] = None
        if len(self._counted) > REMEMBERED:
            self._counted.popitem(last=False)

    def _count(self, turn: ObservedTurn) -> None:
        number = turn.turn or (1 if turn.cause == "first_turn" else 2)
        bucket, detail = turn_bucket(number), turn.detail or ""
        self._metrics.counter("kvdiag_turns_total", turn.cause, detail, bucket).inc()
        if (kind := _EXPIRIES.get(turn.cause)) is not None:
            self._metrics.counter("kvdiag_expiries_total", kind).inc()
        self._observe("kvdiag_prefill_seconds", turn.prefill_s)
        self._observe("kvdiag_inter_turn_gap_seconds", turn.gap_s)
        self._observe("kvdiag_turn_ttft_seconds", turn.ttft_s, turn.cause, bucket, "reuse")
        if number > 1 and turn.prompt_tokens is not None:
            reused = "yes" if turn.cause in OUTCOMES else "no"
            self._observe(
                "kvdiag_turn_ttft_by_prompt_seconds", turn.ttft_s, prompt_bucket(turn.prompt_tokens), reused, "reuse"
            )
        self._tokens(turn)
        if turn.transfer_bytes:
            self._metrics.counter("kvdiag_transfer_bytes_total", "decode_to_prefill").inc(turn.transfer_bytes)
        self._observe("kvdiag_transfer_seconds", turn.transfer_s, "decode_to_prefill")

    def _tokens(self, turn: ObservedTurn) -> None:
        counts = {
            "local": turn.local_tokens,
            "remote": turn.remote_tokens,
            "computed": turn.computed_tokens,
            "lost": turn.lost_tokens,
        }
        for source, count in counts.items():
            self._metrics.counter("kvdiag_prompt_tokens_total", source).inc(count or 0)
        if turn.lost_tokens:
            self._metrics.counter("kvdiag_lost_tokens_total", turn.cause, turn.detail or "").inc(turn.lost_tokens)

    def _observe(self, name: str, value: float | None, *labels: str) -> None:
        if value is not None:
            self._metrics.histogram(name, *labels).observe(value)
