"""vLLM's own series that the dashboards use, by the release that has them.

Renames are what empties dashboards in the field: a query names every spelling, newest first, joined by `or`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

Release = tuple[int, int]
EARLIEST: Final[Release] = (0, 11)
"""The oldest release that the table covers."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """One name of a series: the first release with it and, where it went away, the first without."""

    name: str
    since: Release = EARLIEST
    until: Release | None = None

    def in_release(self, release: Release) -> bool:
        """Whether this release exposes the series under this name."""
        return self.since <= release and (self.until is None or release < self.until)


@dataclass(frozen=True, slots=True)
class Series:
    """A series, its spellings (newest first) and which engines expose it."""

    what: str
    spellings: tuple[Spelling, ...]
    exposed: Literal["always", "nixl", "consumer"] = "always"
    """`nixl`: with a NIXL connector, after its first transfer statistics; `consumer`: only where kv_role is a consumer."""

    def query(self, expression: Callable[[str], str]) -> str:
        """Return the expression over every spelling; the first that has data wins."""
        return " or ".join(expression(spelling.name) for spelling in self.spellings)


RUNNING: Final = Series("running requests", (Spelling("vllm:num_requests_running"),))
WAITING: Final = Series("waiting requests, deferred ones included", (Spelling("vllm:num_requests_waiting"),))
QUEUE_TIME: Final = Series("time in the queue, seconds", (Spelling("vllm:request_queue_time_seconds_bucket"),))
WAITING_BY_REASON: Final = Series(
    "waiting requests by reason (`deferred`: waits for remote KV)",
    (Spelling("vllm:num_requests_waiting_by_reason", since=(0, 21)),),
)
CACHE_USAGE: Final = Series(
    "share of KV blocks in use, 0 to 1",
    (Spelling("vllm:kv_cache_usage_perc"), Spelling("vllm:gpu_cache_usage_perc", until=(0, 12))),
)
PREEMPTIONS: Final = Series("preempted requests", (Spelling("vllm:num_preemptions_total"),))
TTFT: Final = Series("time to first token, seconds", (Spelling("vllm:time_to_first_token_seconds_bucket"),))
PROMPT_TOKENS_BY_SOURCE: Final = Series(
    "prompt tokens by source", (Spelling("vllm:prompt_tokens_by_source_total", since=(0, 16)),)
)
NIXL_TRANSFER_TIME: Final = Series(
    "NIXL transfer time, seconds (tops out at 5 s)",
    (Spelling("vllm:nixl_xfer_time_seconds_bucket", since=(0, 15)),),
    exposed="nixl",
)
NIXL_BYTES: Final = Series(
    "bytes read by this engine", (Spelling("vllm:nixl_bytes_transferred_sum", since=(0, 15)),), exposed="nixl"
)
NIXL_FAILED: Final = Series(
    "failed transfers", (Spelling("vllm:nixl_num_failed_transfers_total", since=(0, 15)),), exposed="nixl"
)
NIXL_EXPIRED: Final = Series(
    "expiries; three different things in one counter, see kvdiag_expiries_total",
    (Spelling("vllm:nixl_num_kv_expired_reqs_total", since=(0, 16)),),
    exposed="nixl",
)

SERIES: Final[tuple[Series, ...]] = (
    RUNNING,
    WAITING,
    QUEUE_TIME,
    WAITING_BY_REASON,
    CACHE_USAGE,
    PREEMPTIONS,
    TTFT,
    PROMPT_TOKENS_BY_SOURCE,
    NIXL_TRANSFER_TIME,
    NIXL_BYTES,
    NIXL_FAILED,
    NIXL_EXPIRED,
)
