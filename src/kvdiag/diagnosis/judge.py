"""One turn's marks into its causes. What happened first and deepest wins; the rest is its effect.

A 500 after a decline is the decline; a lease that lapsed after a failed transfer is the failure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kvdiag.causes import CAUSES, OUTCOMES, Confidence
from kvdiag.diagnosis.digest import SENT, is_lapse
from kvdiag.diagnosis.ids import external_id, spellings
from kvdiag.diagnosis.split import COARSE_S, QUEUED_S, TELLING_BYTES, events, longest_queue, router_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdiag.diagnosis.casebook import Casebook
    from kvdiag.diagnosis.engines import Failure
    from kvdiag.diagnosis.report import Evidence
    from kvdiag.diagnosis.turns import Mark, Turn

EFFECTS: Final = ("skipped", "load_failed", "internal_error", "aborted")
# A set-up with a new peer is a second or two of work; engines that are short of CPU take three.
SLOW_HANDSHAKE_S: Final = 4.0
# As for the periodic lines: felt in the time to first token, and below a tenth of what a 100 Gbit/s fabric carries.
_FELT_S: Final = 0.4
_SLOW_BYTES_S: Final = 1e9
_REUSED: Final = frozenset({"remote_hit", "local_hit", "below_threshold"})
_REFUSALS: Final = frozenset(
    {"missing_metadata", "feature_off", "prefix_diverged", "expired_remote_read", "peer_unreachable"}
)
"""Why a connector computes what decode holds."""
_SERVER_ERROR: Final = 500
_HANDSHAKES: Final = ("handshake",)
# The counters come every 10 s; on a loaded engine somewhat later.
_BESIDE_S: Final = 20.0
# The KV had arrived: nothing was lost but the message that frees the peer's blocks.
_HARMLESS: Final = frozenset({"notification_failed", "transfer_release_failed", "push_reg_notif_failed"})


@dataclass(frozen=True, slots=True)
class Fault:
    """Why one turn could not reuse, failed or was slow."""

    cause: str
    detail: str | None
    confidence: Confidence
    evidence: list[Evidence] = field(default_factory=list)
    failed: bool = False
    """The turn ended in an error or never."""


def judge(turn: Turn, book: Casebook) -> list[Fault]:
    """Return the turn's faults, the deepest first; none where all that is known of it is an outcome or nothing."""
    for step in _STEPS:
        fault = step(turn, book)
        if fault is not None:
            return [fault, *_behind(fault, turn)]
    return []


def _behind(fault: Fault, turn: Turn) -> list[Fault]:
    """Return what led to a fault and is a fault of its own: blocks that were read late had lapsed before."""
    lapsed = _given_up(turn) or _lapsed(turn)
    return [lapsed] if lapsed is not None and fault.cause == "suspect_kv" else []


def outcome(turn: Turn) -> str | None:
    """Return how a turn without a fault ended: first_turn, remote_hit, local_hit or below_threshold.

    A read that stopped where the prompt parts from what decode holds is still a hit.
    """
    told = _told_outcome(turn)
    if told is None and turn.lookup is not None:
        return {"hit": "remote_hit", "first_turn": "first_turn"}.get(turn.lookup.result)
    return "remote_hit" if told == SENT else told


def is_only_sent(turn: Turn) -> bool:
    """Tell whether all that speaks for a read-back is that a router sent the handle: it may never have been read."""
    told = _told_outcome(turn)
    read = any(mark.engine.role == "prefill" for mark in turn.marks.get("read_finished", ()))
    return told == SENT or (told is None and not read and outcome(turn) == "remote_hit")


def _told_outcome(turn: Turn) -> str | None:
    if turn.record is not None and turn.record.cause in OUTCOMES:
        return turn.record.cause
    if turn.counted not in {None, SENT}:
        return turn.counted
    for mark in turn.marks.get("event_match", ()):
        if mark.engine.role != "decode" and mark.data["event"].cause in OUTCOMES:
            return str(mark.data["event"].cause)
    for kind in ("below_threshold", "local_hit"):
        if turn.seen(kind):
            return kind
    return turn.counted


def _failed(turn: Turn) -> bool:
    answered = turn.record is None or turn.record.status < _SERVER_ERROR
    return not answered or turn.seen("load_failed", "internal_error", "aborted", "engine_dead") or _turned_away(turn)


def _turned_away(turn: Turn) -> bool:
    """Tell whether the turn's router saw an engine's error, and did not go on without that engine."""
    return turn.seen("refused") and not turn.seen("fell_back")


def _support(turn: Turn, book: Casebook) -> list[Evidence]:
    """Return the effects, and what became of the blocks on decode: the turn's own and those that it was to read."""
    held = spellings(turn.handle) if turn.handle else (turn.id,)
    ended = [book.ended[owner] for owner in dict.fromkeys((turn.id, *held)) if owner in book.ended]
    owner = next((book.turns[name] for name in held if name in book.turns), None)
    other = owner.evidence("released") if owner is not None and owner is not turn else []
    return [*turn.evidence(*EFFECTS, "released"), *ended, *other, *turn.evidence("handle_sent")]


def _suspect(turn: Turn, book: Casebook) -> Fault | None:
    if not turn.seen("read_after_release") or was_given_up(turn, book):
        return None
    evidence = [*turn.evidence("read_after_release", "released"), *_support(turn, book)]
    return Fault("suspect_kv", "read_after_release", "certain", evidence)


def was_given_up(turn: Turn, book: Casebook) -> bool:
    """Tell whether who read the turn's blocks late had given the read up before: it computed the prompt, and is right."""
    late = [event.remote_request_id for event in events(turn, "event_failure") if event.cause == "suspect_kv"]
    readers = [book.turns.get(external_id(reader)) for reader in late if reader]
    return bool(readers) and all(
        reader is not None and any(event.detail == "stalled" for event in events(reader, "event_failure"))
        for reader in readers
    )


def _declined(turn: Turn, book: Casebook) -> Fault | None:
    if not turn.seen("declined"):
        return None
    errored = turn.seen("load_failed", "internal_error") or _turned_away(turn)
    detail = "failed_request" if errored else "declined"
    evidence = [*turn.evidence("declined"), *_support(turn, book)]
    return Fault("expired_remote_read", detail, "certain", evidence, failed=_failed(turn))


def _transfer(turn: Turn, book: Casebook) -> Fault | None:
    serious = [failure for failure in turn.failures if failure.type not in _HARMLESS]
    if not serious:
        return None
    cause, detail = failure_cause(serious[0], turn, book)
    evidence = [*(failure.evidence for failure in serious[:2]), *_support(turn, book)]
    return Fault(cause, detail, "certain", evidence, failed=_failed(turn))


def failure_cause(failure: Failure, turn: Turn | None, book: Casebook) -> tuple[str, str | None]:
    """Return the cause that a failed transfer or handshake comes down to."""
    engines = [mark.engine for mark in turn.marks.get(failure.type, ())] if turn is not None else []
    reasons = {failure.reason, *(engine.peer_reasons.get(failure.peer or "") for engine in engines or book.engines)}
    if "restarted" in reasons or _was_replaced(failure.peer, book):
        return "peer_unreachable", "restarted"
    if not any(word in failure.type for word in _HANDSHAKES) and "incompatible" not in reasons:
        return "transfer_failed", None
    return "peer_unreachable", "incompatible" if "incompatible" in reasons else "handshake_failed"


def _was_replaced(peer: str | None, book: Casebook) -> bool:
    return peer is not None and any(peer in engine.replaced or peer in engine.former_ids for engine in book.engines)


def _hung(turn: Turn, book: Casebook) -> Fault | None:
    """Judge a turn that went on without its handle after an error: by the arguments of a prefill that hangs on any handle."""
    record = turn.record
    if record is None or turn.record_at is None or (record.cause, record.lookup) != ("upstream_error", "hit"):
        return None
    if record.status >= _SERVER_ERROR or not is_off("prefill", book):
        return None
    return Fault("feature_off", "prefill", "certain", [*config_lines("prefill", book), turn.record_at])


def _recorded(turn: Turn, book: Casebook) -> Fault | None:
    """Take the router's or connector's own word for it."""
    record = turn.record
    if record is not None and record.cause and record.cause not in OUTCOMES and turn.record_at is not None:
        cause = record.cause if record.cause in CAUSES else "unexplained"
        detail = record.detail if record.detail in CAUSES[cause].details else None
        cause, detail, lines = _root(cause, detail, book)
        return Fault(cause, detail, "certain", [*lines, turn.record_at], failed=record.status >= _SERVER_ERROR)
    if was_given_up(turn, book):
        return None
    if outcome(turn) not in _REUSED:
        return _event_fault(turn, "event_failure", "event_decline", "event_match")
    # A connector matches before it reads: what fails then is no hit, unless the router knows better.
    by_router = record is not None or turn.counted not in {None, SENT}
    return None if by_router else _event_fault(turn, "event_failure")


def _event_fault(turn: Turn, *kinds: str) -> Fault | None:
    for kind in kinds:
        for mark in turn.marks.get(kind, ()):
            event = mark.data["event"]
            if event.cause not in CAUSES or event.cause in OUTCOMES:
                continue
            detail = event.detail if event.detail in CAUSES[event.cause].details else None
            # Without a router's word a connector cannot tell a first turn from one whose handle was lost.
            if kind != "event_match" or (detail and event.cause in _REFUSALS):
                return Fault(event.cause, detail, "certain", [mark.evidence])
    return None


def _slow_event(turn: Turn, _book: Casebook) -> Fault | None:
    """Judge a transfer that the connector timed: its set-up, or its pace."""
    for mark in turn.marks.get("event_transfer", ()):
        event = mark.data["event"]
        if (event.handshake_s or 0.0) >= SLOW_HANDSHAKE_S:
            return Fault("slow_transfer", "handshake", "certain", [mark.evidence])
        seconds = (event.seconds or 0.0) + (event.post_seconds or 0.0)
        size = event.bytes or 0
        if event.direction and size >= TELLING_BYTES and seconds >= max(_FELT_S, size / _SLOW_BYTES_S):
            return Fault("slow_transfer", event.direction, "certain", [mark.evidence])
    return None


def _handoff(turn: Turn, _book: Casebook) -> Fault | None:
    given_up = _given_up(turn)
    if given_up is not None or turn.failures or turn.seen("aborted", "engine_dead"):
        return given_up
    return _lapsed(turn)


def _given_up(turn: Turn) -> Fault | None:
    """Judge a push that decode stopped waiting for."""
    if not turn.seen("push_timeout"):
        return None
    return Fault("expired_handoff", None, "certain", turn.evidence("push_timeout"), failed=_failed(turn))


def _lapsed(turn: Turn) -> Fault | None:
    """Judge a release by its owner: on prefill a lapsed lease, on decode the normal end of a conversation; nobody's tells nothing."""
    for mark in turn.marks.get("released", ()):
        if mark.engine.role == "prefill" or mark.data["old"]:
            return Fault("expired_handoff", None, "certain", turn.evidence("released", *EFFECTS))
    lines = [mark.evidence for mark in turn.marks.get("event_release", ()) if is_lapse(mark.data["event"])]
    return Fault("expired_handoff", None, "certain", lines) if lines else None


def _not_read(turn: Turn, book: Casebook) -> Fault | None:
    """Judge a handle sent to a prefill that has the feature off: it claims the tokens, reads nothing and hangs."""
    if turn.handle is None or not turn.seen("handle_sent", "params_usable") or not is_off("prefill", book):
        return None
    evidence = [*turn.evidence("aborted", "params_usable", "handle_sent"), *config_lines("prefill", book)]
    return Fault("feature_off", "prefill", "certain", evidence, failed=turn.seen("aborted") or turn.prefill_s is None)


def _incomplete(turn: Turn, _book: Casebook) -> Fault | None:
    if not turn.seen("params_incomplete"):
        return None
    return Fault("missing_metadata", "incomplete", "certain", turn.evidence("params_incomplete"))


def _engine_dead(turn: Turn, _book: Casebook) -> Fault | None:
    if not turn.seen("engine_dead"):
        return None
    return Fault("upstream_error", None, "certain", turn.evidence("engine_dead"), failed=True)


def _harmless(turn: Turn, _book: Casebook) -> Fault | None:
    if not turn.failures:
        return None
    evidence = [failure.evidence for failure in turn.failures[:2]] + turn.evidence("released")
    return Fault("transfer_failed", None, "possible", evidence)


def _load_failed(turn: Turn, _book: Casebook) -> Fault | None:
    """Judge a load that failed without a line that says why (filtered, cut).

    What its engine counted tells; else what cannot be missing: a failed transfer leaves an error just as the failed
    load does, a declined read only a warning.
    """
    if not turn.seen("load_failed", "skipped"):
        return None
    mark = next(iter(turn.marks.get("load_failed") or turn.marks["skipped"]))
    failed, expired, counters = _counted_beside(mark)
    declined = mark.engine.role != "decode" and turn.seen("load_failed") and not turn.seen("skipped")
    sure: Confidence = "likely" if bool(failed) != bool(expired) else "possible"
    evidence = [*turn.evidence("load_failed", *EFFECTS), *counters]
    if (expired or declined) and not failed:
        detail = "failed_request" if turn.seen("load_failed", "internal_error") else "declined"
        return Fault("expired_remote_read", detail, sure, evidence, failed=_failed(turn))
    return Fault("transfer_failed", None, sure, evidence, failed=_failed(turn))


def _counted_beside(mark: Mark) -> tuple[int, int, list[Evidence]]:
    """Return what the engine counted in the interval of a line: failed transfers, expired reads, and where it says so.

    On decode expiries count conversations that ended.
    """
    for sample in mark.engine.transfers.samples:
        if mark.stamp is not None and sample.stamp is not None and 0 <= sample.stamp - mark.stamp < _BESIDE_S:
            expired = sample.expired if mark.engine.role != "decode" else 0
            return sample.failed, expired, [sample.evidence] if sample.failed or expired else []
    return 0, 0, []


def _looked_up(turn: Turn, book: Casebook) -> Fault | None:
    lookup = turn.lookup
    if lookup is None or lookup.result not in CAUSES["missing_metadata"].details:
        return None
    cause, detail, lines = _root("missing_metadata", lookup.result, book)
    confidence: Confidence = "certain" if lookup.certain else "likely"
    if detail == "consumed" and not lookup.certain:
        confidence = "possible"
    return Fault(cause, detail, confidence, [*lines, *lookup.evidence, *turn.evidence("no_conversation_id")])


def _root(cause: str, detail: str | None, book: Casebook) -> tuple[str, str | None, list[Evidence]]:
    """Return what lies behind a handle that a router did not have, and its lines: a decode with the feature off gives none."""
    if detail in {"not_returned", "router_lost_state"} and is_off("decode", book):
        return "feature_off", "decode", config_lines("decode", book)
    return cause, detail, []


def is_off(role: str, book: Casebook) -> bool:
    """Tell whether start-up arguments show that bidirectional transfer is off on every engine of a role."""
    # An engine's event log is a log of its own, without start-up arguments.
    engines = [engine for engine in book.engines if engine.role == role and engine.is_vllm]
    configs = [engine.config for engine in engines]
    return (
        bool(configs)
        and all(config is not None and config.connector and not config.bidirectional for config in configs)
        and not any(engine.bidirectional for engine in engines)
    )


def config_lines(role: str, book: Casebook) -> list[Evidence]:
    """Return the start-up lines of the engines of a role."""
    return [engine.configs[-1][1] for engine in book.engines if engine.role == role and engine.configs]


def _refused(turn: Turn, _book: Casebook) -> Fault | None:
    """Judge a turn that its router saw refused by an engine."""
    if not turn.seen("refused"):
        return None
    evidence = turn.evidence("refused", "fell_back", "retried")
    return Fault("upstream_error", None, "certain", evidence, failed=_turned_away(turn))


def _held_by_router(turn: Turn, _book: Casebook) -> Fault | None:
    """Judge a turn that took seconds in the router itself, by its own clock."""
    if (router_s(turn) or 0.0) < COARSE_S:
        return None
    looked_up = turn.lookup.evidence if turn.lookup is not None else []
    record = [turn.record_at] if turn.record_at is not None else []
    return Fault(
        "router_overhead",
        None,
        "likely",
        [*turn.evidence("prefill_done", "routed_prefill", "routed_decode"), *looked_up, *record],
    )


def _queued(turn: Turn, _book: Casebook) -> Fault | None:
    """Judge a turn that an engine let wait for seconds, by the engine's own clock."""
    role, waited = longest_queue(turn)
    if waited < QUEUED_S:
        return None
    record = [turn.record_at] if turn.record_at is not None else []
    return Fault("queueing", role, "certain", [*record, *turn.evidence("event_match", "added", "read_started")])


def _aborted(turn: Turn, _book: Casebook) -> Fault | None:
    if not turn.seen("aborted"):
        return None
    return Fault("client", "aborted", "certain", turn.evidence("aborted", "released"), failed=True)


_STEPS: Final[tuple[Callable[[Turn, Casebook], Fault | None], ...]] = (
    _suspect,
    _declined,
    _transfer,
    _hung,
    _recorded,
    _handoff,
    _not_read,
    _incomplete,
    _engine_dead,
    _load_failed,
    _harmless,
    _looked_up,
    _refused,
    _slow_event,
    _held_by_router,
    _queued,
    _aborted,
)
"""In order of depth: the first step that knows a cause decides."""
