"""The rules, as data: the causes that each can find, the input that it needs, and how it judges the casebook.

A rule is *fired* when it returns tallies, *clear* when its input is there and it returns none, and *not evaluated*
when the input that would show the fault is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvdiag.causes import OUTCOMES
from kvdiag.diagnosis.counted import counted, has_snapshots
from kvdiag.diagnosis.engines import notes_of
from kvdiag.diagnosis.expiry import counted_expiries, counted_late_notifications
from kvdiag.diagnosis.findings import Tally, turns_of
from kvdiag.diagnosis.judge import config_lines, failure_cause, is_off
from kvdiag.diagnosis.latency import long_turns
from kvdiag.diagnosis.loads import congestion
from kvdiag.diagnosis.transfers import slow_transfers

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdiag.causes import Confidence
    from kvdiag.diagnosis.casebook import Casebook
    from kvdiag.diagnosis.engines import EngineLog
    from kvdiag.diagnosis.report import Evidence
    from kvdiag.diagnosis.summary import Tallies


# The periodic lines come every 10 s: three of them are a state, not a moment.
_STANDING: Final = 3
_LITTLE: Final = 50.0
SLOWING: Final = frozenset({"slow_transfer", "queueing", "kv_pressure"})
"""Causes that slow turns down which have no fault of their own."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `judge` sees the tallies of single turns and returns what the whole logs add to them."""

    id: str
    causes: tuple[str, ...]
    needs: str
    ready: Callable[[Casebook], bool]
    judge: Callable[[Casebook, Tallies], list[Tally]]


def _nothing(_book: Casebook, _tallies: Tallies) -> list[Tally]:
    return []


# -- peers and transfers ----------------------------------------------------------------------------------------


def _unassigned_failures(book: Casebook, tallies: Tallies) -> list[Tally]:
    """Count set-up failures that no request was blamed for, and peers that were replaced."""
    if turns_of(tallies, "peer_unreachable"):
        return []
    found: Tallies = {}
    for engine in book.engines:
        for failure in (item for items in engine.failures.values() for item in items):
            cause, detail = failure_cause(failure, None, book)
            if cause == "peer_unreachable":
                found.setdefault((cause, detail), Tally(cause, detail)).add("likely", [failure.evidence])
    replaced = [evidence for engine in book.engines for evidence in engine.replaced.values()]
    if not found and replaced:
        return [Tally.of("peer_unreachable", "restarted", "possible", 0, replaced)]
    return list(found.values())


def _counted_failures(book: Casebook, tallies: Tallies) -> list[Tally]:
    if turns_of(tallies, "transfer_failed", "peer_unreachable"):
        return []
    engines = [engine for engine in book.engines if engine.counts["transfers_failed"] and not engine.failures]
    count = sum(engine.counts["transfers_failed"] for engine in engines)
    if count:
        return [Tally.of("transfer_failed", None, "likely", count, notes_of(engines, "counted_failed"))]
    vllm = [e for e in book.engines if e.role in {"prefill", "decode"} and e.notes.get("native_failure")]
    evidence = notes_of(vllm, "native_failure")
    return [Tally.of("transfer_failed", None, "possible", 0, evidence)] if evidence else []


def _slow_handshakes(book: Casebook, _tallies: Tallies) -> list[Tally]:
    engines = [engine for engine in book.engines if engine.notes.get("handshake_time")]
    count = sum(engine.counts["handshake_time"] for engine in engines)
    return (
        [Tally.of("slow_transfer", "handshake", "likely", count, notes_of(engines, "handshake_time"))] if count else []
    )


def _slow_transfers(book: Casebook, tallies: Tallies) -> list[Tally]:
    found = []
    for engine in book.engines:
        slow = slow_transfers(engine)
        if slow is None or ("slow_transfer", slow.direction) in tallies:
            continue
        lines = [sample.evidence for sample in slow.samples] + engine.notes.get("slow_transport", [])[:1]
        tally = Tally.of(
            "slow_transfer", slow.direction, "likely" if slow.lasting else "possible", slow.transfers, lines
        )
        tally.lose(None, slow.seconds)
        found.append(tally)
    return found


# -- configuration ----------------------------------------------------------------------------------------------


def _no_connector(book: Casebook, _tallies: Tallies) -> list[Tally]:
    engines = [engine for engine in book.engines if engine.notes.get("no_connector")]
    if not engines:
        return []
    by_role: dict[str | None, int] = {}
    for engine in engines:
        by_role[engine.role] = by_role.get(engine.role, 0) + engine.counts["no_connector"]
    computing = [
        s.evidence
        for e in book.with_role("decode")
        for series in e.loads.values()
        for s in series.samples
        if s.prompt_rate > 0
    ]
    evidence = [*notes_of(engines, "no_connector"), *computing[:2]]
    return [Tally.of("feature_off", "no_connector", "certain", max(by_role.values()), evidence)]


def _no_params(book: Casebook, tallies: Tallies) -> list[Tally]:
    """Find a prefill whose answers carry no params for decode, by its router's word."""
    routers = [engine for engine in book.engines if engine.notes.get("no_params")]
    if not routers or turns_of(tallies, "feature_off"):
        return []
    count = sum(engine.counts["no_params"] for engine in routers)
    return [Tally.of("feature_off", "no_connector", "likely", count, notes_of(routers, "no_params"))]


def _one_side_off(book: Casebook, tallies: Tallies) -> list[Tally]:
    """Start-up arguments that differ: bidirectional on one side only."""
    off = [role for role in ("prefill", "decode") if is_off(role, book)]
    on = [engine for engine in book.engines if engine.bidirectional or (engine.config and engine.config.bidirectional)]
    if not off or not on or ("feature_off", off[0]) in tallies:
        return []
    engines = [engine for engine in book.engines if engine.role == off[0]]
    evidence = [*config_lines(off[0], book), *notes_of(engines, "nixl_missing")]
    return [Tally.of("feature_off", off[0], "likely", 0, evidence)]


def _invalid_params(book: Casebook, _tallies: Tallies) -> list[Tally]:
    engines = [e for e in book.engines if e.notes.get("invalid_params") or e.notes.get("params_incomplete")]
    count = sum(max(engine.counts["invalid_params"], engine.counts["params_incomplete"]) for engine in engines)
    evidence = notes_of(engines, "invalid_params", "params_incomplete")
    return [Tally.of("missing_metadata", "incomplete", "certain", count, evidence)] if count else []


def _never_handed_over(book: Casebook, _tallies: Tallies) -> list[Tally]:
    """Find a decode that computes prompts itself although it has a connector: its requests name no prefill."""
    found = []
    for engine in book.engines:
        samples = [sample for series in engine.loads.values() for sample in series.samples]
        computing = [s for s in samples if s.prompt_rate > s.generation_rate and not s.external]
        troubled = engine.failures or engine.last_failure or engine.snapshots or engine.counts["transfers_failed"]
        if engine.config is None or engine.config.role != "decode" or engine.transfers.seen or troubled:
            continue
        if len(computing) >= _STANDING and len(computing) * 2 > len(samples):
            turns = max((notes.accepted for notes in book.files.values() if engine.name in notes.logs), default=0)
            lines = [sample.evidence for sample in computing]
            found.append(Tally.of("missing_metadata", None, "likely", turns, lines))
    return found


def _never_read(book: Casebook, tallies: Tallies) -> list[Tally]:
    """Find handles that were sent to a prefill which reads nothing and holds little itself."""
    sent = [turn for turn in book.turns.values() if turn.seen("handle_sent")]
    engines = book.with_role("prefill")
    samples = [
        s for engine in engines for series in engine.loads.values() for s in series.samples if s.external is not None
    ]
    idle = all(sample.external == 0 and (sample.prefix or 0.0) < _LITTLE for sample in samples)
    reads = any(engine.counts["transfers_succeeded"] or engine.snapshots for engine in engines)
    known = {cause for cause, _ in tallies} - OUTCOMES - {"missing_metadata"}
    if (
        len(sent) < _STANDING
        or len(samples) < _STANDING
        or not idle
        or reads
        or known
        or ("missing_metadata", "incomplete") in tallies
    ):
        return []
    lines = [sample.evidence for sample in samples] + [line for turn in sent for line in turn.evidence("handle_sent")]
    return [Tally.of("missing_metadata", "incomplete", "likely", len(sent), lines)]


# -- load -------------------------------------------------------------------------------------------------------


def _congested(book: Casebook, tallies: Tallies) -> list[Tally]:
    found = []
    for engine in book.engines:
        if lines := engine.notes.get("preempted"):
            found.append(Tally.of("kv_pressure", "preempted", "certain", engine.counts["preempted"], lines))
            continue
        for item in congestion(engine):
            evidence = [sample.evidence for sample in item.samples]
            waiting = 0 if (item.cause, item.detail) in tallies else item.waiting
            found.append(Tally.of(item.cause, item.detail, "likely", waiting, evidence))
    return found


def _long_prompts(book: Casebook, tallies: Tallies) -> list[Tally]:
    """Explain slow turns that did read back by what they added to the conversation."""
    slow = long_turns(book.turns.values())
    if not slow or any(cause in SLOWING for cause, _ in tallies):
        return []
    busiest = [s for e in book.with_role("prefill") for series in e.loads.values() for s in series.samples]
    busiest.sort(key=lambda sample: -sample.prompt_rate)
    lines = [line for turn in slow for line in turn.evidence("handle_sent", "prefill_done")]
    evidence = [*lines, *(sample.evidence for sample in busiest[: len(slow)])]
    tally = Tally.of("compute_bound", None, "likely", len(slow), evidence)
    tally.slow_turns = len(slow)
    tally.members = {turn.id for turn in slow}
    return [tally]


# -- errors -----------------------------------------------------------------------------------------------------


def _failed_starts(book: Casebook, tallies: Tallies) -> list[Tally]:
    """Find engines that did not come up: nothing they would have served can be judged."""
    engines = [engine for engine in book.engines if engine.notes.get("start_failed")]
    if not engines or ("upstream_error", None) in tallies:
        return []
    raised = [engine.raised for engine in engines if engine.raised is not None]
    lines = [*(line for _, line in raised), *notes_of(engines, "start_failed")]
    tally = Tally.of("upstream_error", None, "certain", 0, lines)
    several = "s" if len(engines) > 1 else ""
    tally.summary = f"{len(engines)} engine{several} failed to start" + "".join(f": {text}" for text, _ in raised[:1])
    tally.next_step = (
        "mend what the exception in the evidence says, and start the engine again; until then its role serves nothing"
    )
    return [tally]


def _upstream_errors(book: Casebook, tallies: Tallies) -> list[Tally]:
    """Errors that no cause explains: an engine that died, a router that reached none, bare 5xx answers."""
    died = notes_of(book.engines, "fatal", "crash")
    dead = died or _frozen(book, tallies)
    routers = [engine for engine in book.engines if engine.counts["router_error"] or engine.counts["connect_error"]]
    others = sum(tally.failed for (cause, _), tally in tallies.items() if cause != "upstream_error")
    retries = sum(turn.record.retries for turn in book.turns.values() if turn.record is not None)
    known = tallies.get(("upstream_error", None))
    explained = others + (known.turns if known else 0)
    excess = max((_errors(engine) - (explained + retries) * _tellers(engine) for engine in book.engines), default=0)
    lines = notes_of(book.engines, "router_error", "http_5xx", "upstream_5xx") + notes_of(routers, "connect_error")
    evidence = [*lines[:4], *dead, *notes_of(book.engines, "stalled"), *lines[4:]]
    if excess <= 0 and known and not others:
        return [Tally.of("upstream_error", None, "likely", 0, evidence)]  # what the engines say of the same errors
    if excess <= 0 and (explained or not dead):
        return []
    confidence: Confidence = "certain" if died or routers else "likely"
    return [Tally.of("upstream_error", None, confidence, max(excess, 0), evidence)]


def _frozen(book: Casebook, tallies: Tallies) -> list[Evidence]:
    """Return the lines of a decode that stood still while leases lapsed. By itself that harms nobody: engines compile."""
    return notes_of(book.with_role("decode"), "stalled") if ("expired_handoff", None) in tallies else []


def _tellers(engine: EngineLog) -> int:
    """Return how many processes tell of the same error in one log: two where router and engines share it."""
    return 2 if engine.is_vllm and engine.votes["router"] else 1


def _errors(engine: EngineLog) -> int:
    """Return the failed requests of one log, each of which may have left several lines."""
    counts = engine.counts
    return max(counts["router_error"], counts["http_5xx"], counts["upstream_5xx"])


# -- readiness --------------------------------------------------------------------------------------------------


def _has(role: str) -> Callable[[Casebook], bool]:
    return lambda book: any(engine.role == role for engine in book.engines)


def _has_engine(book: Casebook) -> bool:
    return any(engine.role in {"prefill", "decode"} for engine in book.engines)


def _has_loads(book: Casebook) -> bool:
    return any(engine.loads or engine.snapshots for engine in book.engines)


def _has_handshakes(book: Casebook) -> bool:
    """Tell whether set-ups would show: at DEBUG, or in the events of transfers, which hold the time of theirs."""
    shown = ("params_none", "params_usable", "event_transfer")
    return any(engine.counts[kind] for engine in book.engines for kind in shown)


def _has_transfers(book: Casebook) -> bool:
    return any(e.transfers.seen or e.snapshots or e.counts["event_transfer"] for e in book.engines)


def _has_look_ups(book: Casebook) -> bool:
    return bool(book.conversations) or _has_records(book)


def _has_records(book: Casebook) -> bool:
    return any(engine.counts["turn_records"] for engine in book.engines)


def _has_matches(book: Casebook) -> bool:
    return _has_records(book) or any(engine.counts["event_match"] for engine in book.engines)


def _has_configs(book: Casebook) -> bool:
    return any(engine.configs for engine in book.engines)


def _has_answers(book: Casebook) -> bool:
    return _has_engine(book) or any(notes.accepted for notes in book.files.values()) or _has_look_ups(book)


RULES: Final = (
    Rule(
        "expired_remote_read",
        ("expired_remote_read", "expired_handoff"),
        "prefill's log",
        _has("prefill"),
        counted_expiries,
    ),
    Rule(
        "read_after_release",
        ("suspect_kv",),
        "the log of the engine that owned the blocks",
        _has_engine,
        counted_late_notifications,
    ),
    Rule(
        "peer_unreachable",
        ("peer_unreachable",),
        "the log of the engine that reads (decode, or prefill for reads back)",
        _has_engine,
        _unassigned_failures,
    ),
    Rule(
        "transfer_failed",
        ("transfer_failed",),
        "the log of the engine that reads (decode, or prefill for reads back)",
        _has_engine,
        _counted_failures,
    ),
    Rule(
        "slow_transfer",
        ("slow_transfer",),
        "`KV Transfer metrics` lines (INFO, vLLM 0.11 or later) or kvdiag's event log",
        _has_transfers,
        _slow_transfers,
    ),
    Rule("no_connector", ("feature_off",), "prefill's or decode's log", _has_engine, _no_connector),
    Rule(
        "params_returned",
        ("feature_off",),
        "prefill's log, or that of llm-d's sidecar",
        _has_engine,
        _no_params,
    ),
    Rule(
        "slow_handshake",
        ("slow_transfer",),
        "DEBUG lines of the engine that reads, or kvdiag's event log",
        _has_handshakes,
        _slow_handshakes,
    ),
    Rule(
        "counters",
        (),
        "a /metrics snapshot of each engine, better two",
        has_snapshots,
        lambda book, _tallies: counted(book),
    ),
    Rule(
        "handed_over",
        ("missing_metadata",),
        "decode's log with its start-up line and periodic lines",
        _has("decode"),
        _never_handed_over,
    ),
    Rule(
        "bidirectional_on_both_sides",
        ("feature_off",),
        "start-up lines (`non-default args`) of prefill and of decode",
        _has_configs,
        _one_side_off,
    ),
    Rule("handle_complete", ("missing_metadata",), "prefill's log", _has("prefill"), _invalid_params),
    Rule(
        "handles_read",
        ("missing_metadata",),
        "the router's log and prefill's periodic lines",
        _has("prefill"),
        _never_read,
    ),
    Rule(
        "handle_kept",
        ("missing_metadata",),
        "the router's log (multi-turn example proxy or kvdiag's turn log)",
        _has_look_ups,
        _nothing,
    ),
    Rule(
        "congestion",
        ("queueing", "kv_pressure"),
        "periodic `Engine 000:` lines or a /metrics snapshot",
        _has_loads,
        _congested,
    ),
    Rule(
        "long_prompts",
        ("compute_bound",),
        "the router's log with prefill times (multi-turn example proxy), or kvdiag's turn log",
        _has_look_ups,
        _long_prompts,
    ),
    Rule(
        "router_time",
        ("router_overhead",),
        "the router's log with prefill times (multi-turn example proxy), or kvdiag's turn log",
        _has_look_ups,
        _nothing,
    ),
    Rule(
        "errors",
        ("upstream_error", "client"),
        "access lines, the router's log or an engine's",
        _has_answers,
        _upstream_errors,
    ),
    Rule("starts", ("upstream_error",), "an engine's log from its start on", _has_answers, _failed_starts),
    Rule("prefix_unchanged", ("prefix_diverged",), "kvdiag's turn log or event log", _has_matches, _nothing),
)
"""Every rule, in the order in which they judge."""
