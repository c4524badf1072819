"""The report (`kvdiag.report/1`): what `kvdiag classify` found, in the shape that every renderer reads."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvdiag.causes import Confidence  # noqa: TC001 - msgspec resolves annotations at run time
from kvdiag.events import REPORT_SCHEMA


class InputSummary(msgspec.Struct, kw_only=True):
    """One file, as it was read. `kind` names the format, `role` who wrote it (None where nothing tells)."""

    path: str
    kind: str
    role: str | None = None
    lines: int = 0
    recognised: int = 0
    skipped: int = 0
    repeated: int = 0
    """Lines of `recognised` that the log holds a second time, and that were not counted again."""
    from_: str | None = msgspec.field(default=None, name="from")
    to: str | None = None
    cut_short: bool = False
    """Not read to its end, for the reason in `problem`: what came before it counts."""
    problem: str | None = None
    """Why the file could not be used, in one line."""


class Window(msgspec.Struct, kw_only=True):
    """The time that the inputs cover, RFC 3339; without a zone where no input names one."""

    from_: str | None = msgspec.field(default=None, name="from")
    to: str | None = None


class TurnCounts(msgspec.Struct, kw_only=True):
    """How many turns were seen."""

    total: int = 0
    first: int = 0
    later: int = 0
    reused: int = 0
    slow: int = 0
    slow_first: int = 0
    """Slow first turns without a fault, of `slow`: no finding counts them, having nothing to reuse they were computed in full."""


class Evidence(msgspec.Struct, kw_only=True):
    """A line that supports a finding; `line` counts from 1, `text` is neutralised and cut."""

    path: str
    line: int
    text: str


class Finding(msgspec.Struct, kw_only=True):
    """One cause, with what it cost and what to change."""

    cause: str
    detail: str | None = None
    confidence: Confidence
    turns: int
    slow_turns: int = 0
    lost_tokens: int | None = None
    lost_seconds: float | None = None
    evidence: list[Evidence] = msgspec.field(default_factory=list)
    next_step: str = ""
    runbook: str = ""


class NotEvaluated(msgspec.Struct, kw_only=True):
    """A rule that could not be judged, and the input that it needs."""

    rule: str
    needs: str


class Verdict(msgspec.Struct, kw_only=True):
    """The answer in one line. `cause` may also be `healthy` or `inconclusive`."""

    cause: str
    detail: str | None = None
    confidence: Confidence
    summary: str


class LatencySplit(msgspec.Struct, kw_only=True):
    """Where a turn's time to first token went, seconds; None where no input tells."""

    router: float | None = None
    prefill_queue: float | None = None
    read: float | None = None
    prefill_compute: float | None = None
    handoff: float | None = None
    decode_first_token: float | None = None
    prefill_unsplit: float | None = None
    """Time of the prefill call that its unknown parts share."""
    decode_unsplit: float | None = None
    """Time after prefill that hand-off, decode and router share, as far as they are not known."""


class Average(msgspec.Struct, kw_only=True):
    """What parts of a turn took on average, by an engine's counters: of no single turn can it be told."""

    role: str
    parts: list[str]
    """Named as in `LatencySplit`; several where the engine counts them as one."""
    mean_s: float
    requests: int
    metric: str
    since: Literal["start", "first scrape"]


class Latency(msgspec.Struct, kw_only=True):
    """What is known of the parts of turns beyond single ones."""

    needs: dict[str, str] = msgspec.field(default_factory=dict)
    """Input that would tell the parts that some turn leaves open."""
    averages: list[Average] = msgspec.field(default_factory=list)


class TurnReport(msgspec.Struct, kw_only=True):
    """One turn. Times are seconds, tokens are counts, None where no input tells."""

    request_id: str
    conversation: str | None = None
    turn: int | None = None
    ts: str | None = None
    prefill: str | None = None
    decode: str | None = None
    cause: str
    detail: str | None = None
    confidence: Confidence
    slow: bool = False
    probe: bool = False
    """Sent by `kvdiag doctor`."""
    status: int | None = None
    stream: bool | None = None
    prompt_tokens: int | None = None
    local_tokens: int | None = None
    remote_tokens: int | None = None
    computed_tokens: int | None = None
    lost_tokens: int | None = None
    lost_seconds: float | None = None
    handle_age_s: float | None = None
    gap_s: float | None = None
    prefill_s: float | None = None
    ttft_s: float | None = None
    total_s: float | None = None
    transfer_bytes: int | None = None
    transfer_s: float | None = None
    split: LatencySplit | None = None
    evidence: list[Evidence] = msgspec.field(default_factory=list)


class Settings(msgspec.Struct, kw_only=True):
    """Settings that the inputs state, under their own names; None where no input tells."""

    decoder_kv_blocks_ttl: float | None = None
    """Seconds."""
    kv_recompute_threshold: int | None = None
    """Tokens."""
    router_handle_ttl: float | None = None
    """Seconds."""


class Report(msgspec.Struct, kw_only=True):
    """Everything that one run of `classify` has to say."""

    schema: str = REPORT_SCHEMA
    verdict: Verdict
    window: Window
    turns: TurnCounts
    findings: list[Finding]
    not_evaluated: list[NotEvaluated]
    inputs: list[InputSummary]
    settings: Settings = msgspec.field(default_factory=Settings)
    latency: Latency = msgspec.field(default_factory=Latency)
    per_turn: list[TurnReport] | None = None
    without_row: int = 0
    """Turns, the oldest, that are counted and have no place in `per_turn`, which holds the last 20,000."""
    interrupted: bool = False
    """Reading was broken off: this is what was known by then."""
