"""What can be set, with its default; read from flags, environment and file by `kvdiag.router.config`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - msgspec resolves annotations at run time
from typing import Annotated, Literal

from msgspec import Meta

from kvdiag.router.intake import Limits
from kvdiag.router.logs import Format  # noqa: TC001 - msgspec resolves annotations at run time
from kvdiag.router.placement import Policy  # noqa: TC001 - msgspec resolves annotations at run time

Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(gt=0)]


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long each step may take, in seconds."""

    connect_s: Seconds = 5.0
    """A connection to an engine."""
    reuse_s: Seconds = 30.0
    """Prefill with a handle; then once more without: vLLM can hang for ever on a read-back that failed."""
    prefill_s: Seconds = 300.0
    """The whole prefill call."""
    first_byte_s: Seconds = 120.0
    """From the decode call to its first byte; a whole answer for a request that does not stream."""
    answer_s: Seconds = 1800.0
    """The whole answer of a request that does not stream."""
    stall_s: Seconds = 120.0
    """Between two bytes of a stream."""
    drain_s: Seconds = 60.0
    """For turns in flight after SIGTERM."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where handles are kept."""

    kind: Literal["memory", "redis"] = "memory"
    """`redis` for several replicas, and to survive restarts."""
    url: str = "redis://127.0.0.1:6379/0"
    """Redis or Valkey; `rediss://` for TLS, `user:password@` before the host."""
    max_entries: Count = 100_000
    """Conversations kept in memory; the longest unused goes first."""
    max_bytes: Count = 512 << 20
    """Bytes kept in memory."""
    ttl_s: Seconds = 3600.0
    """For how long a conversation is remembered, so that a late turn is told from a lost one."""
    timeout_s: Seconds = 0.25
    """For one command; longer counts as down."""


@dataclass(frozen=True, slots=True)
class Health:
    """How engines are watched."""

    interval_s: Seconds = 5.0
    """Between two looks at an engine."""
    timeout_s: Seconds = 5.0
    """For one look."""
    path: str = "/health"
    """What is asked."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The router's configuration."""

    prefill: tuple[str, ...] = ()
    """Prefill engines, `http://HOST:PORT` each."""
    decode: tuple[str, ...] = ()
    """Decode engines."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    """Port to listen on; 0 takes a free one."""
    engines_file: Path | None = None
    """A file of lines `prefill URL` and `decode URL`, read again when it changes."""
    handle_ttl_s: Annotated[float, Meta(ge=0)] | None = None
    """For how long a handle is sent; by default decode's TTL less the reader's margin."""
    decode_ttl_s: Seconds = 480.0
    """Decode's decoder_kv_blocks_ttl, where its connector does not tell."""
    derive_conversations: bool = True
    """Whether a conversation that nobody names is recognised by its history."""
    hash_key: str | None = None
    """Secret behind hashed ids; replicas that share a store need the same one. Random by default."""
    holdout: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Share of conversations that never reuse, to measure what reuse saves."""
    expose_kv_params: bool = False
    """Whether clients see `kv_transfer_params` in answers."""
    prefill_policy: Policy = "least_loaded"
    """`least_loaded` or `round_robin`."""
    decode_policy: Policy = "least_loaded"
    """For a conversation that is new; later turns stay where their blocks are."""
    max_in_flight: Count = 4096
    """Turns at once; more get 503."""
    turn_log: Path | None = None
    """File for the turn log (`kvdiag.turn/1`, JSONL)."""
    turn_log_max_bytes: Count = 64 << 20
    """Size at which the turn log is rotated."""
    turn_log_keep: Count = 4
    """Rotated turn logs that are kept."""
    otlp_endpoint: str | None = None
    """Where spans go: an OTLP collector, `http://HOST:4318` or `grpc://HOST:4317`. Needs the `otel` extra."""
    otlp_metrics_endpoint: str | None = None
    """Where metrics are pushed to beside `/metrics`, in the same form."""
    otlp_genai_names: bool = False
    """Whether pushed metrics come under their GenAI names too."""
    log_format: Format = "text"
    """`text` or `json`."""
    limits: Limits = field(default_factory=Limits)
    deadlines: Deadlines = field(default_factory=Deadlines)
    store: StoreSettings = field(default_factory=StoreSettings)
    health: Health = field(default_factory=Health)
