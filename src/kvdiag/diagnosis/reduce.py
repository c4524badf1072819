"""Facts into the casebook, one small function for each kind of fact."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kvdiag.diagnosis import clock, parameters, peers, records, routing
from kvdiag.diagnosis.conversations import EventKind, RouterEvent
from kvdiag.diagnosis.engines import MAX_ERRORS, EngineLog
from kvdiag.diagnosis.ids import conversation_id, external_id
from kvdiag.diagnosis.judge import SLOW_HANDSHAKE_S
from kvdiag.diagnosis.replay import Replay
from kvdiag.diagnosis.report import Evidence
from kvdiag.diagnosis.series import Series, load_sample, transfer_sample
from kvdiag.diagnosis.snapshots import read_sample
from kvdiag.diagnosis.text import neutralise
from kvdiag.diagnosis.turns import Mark, Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdiag.diagnosis.casebook import Casebook
    from kvdiag.diagnosis.facts import Fact, Scanned
    from kvdiag.diagnosis.options import LogRole

_QUOTED: Final = re.compile(r"'([^']{1,300})'")
_SERVING: Final = re.compile(r"/(?:v1/)?(?:chat/completions|completions|responses|messages|inference|generate)")
_MAX_TYPES: Final = 64
_NOTHING: Final[dict[str, Any]] = {}
_MAX_REASON: Final = 160


class Seen(NamedTuple):
    """One fact on its way into the casebook."""

    book: Casebook
    engine: EngineLog
    fact: Fact
    evidence: Evidence
    source: str

    @property
    def data(self) -> dict[str, Any]:
        """Return the fact's data."""
        return self.fact.data

    def turn(self, *, suffixed: bool = True) -> Turn:
        """Return the turn that the fact names."""
        if suffixed:
            return self.request(self.data["id"])
        return self.book.named(external_id(self.data["id"], suffixed=False))

    def request(self, engine_id: str) -> Turn:
        """Return the turn of an id as the fact's engine spells it."""
        pid = self.fact.pid
        return self.book.request(engine_id, None if pid is None else (self.engine.name, pid))

    def mark(self, kind: str, turn: Turn | None = None, *, suffixed: bool = True) -> Turn:
        """Note the fact with its turn."""
        turn = turn or self.turn(suffixed=suffixed)
        turn.mark(
            kind, Mark(self.evidence, self.engine, self.fact.stamp, self.data if kind == "released" else _NOTHING)
        )
        return turn

    def wants(self, handle: str, turn: Turn) -> None:
        """Note that the turn was to read these blocks."""
        turn.handle = turn.handle or handle
        self.book.wants(handle, turn.id)

    def note(self, kind: str | None = None) -> None:
        """Note the fact with its engine."""
        self.engine.note(kind or self.fact.kind, self.evidence)


def add_block(book: Casebook, source: str, path: str, scanned: Scanned) -> None:
    """Put everything that one block of `path` (a file of `source`) holds into the casebook."""
    facts = book.replays.setdefault(source, Replay()).fresh(scanned.facts)
    told_before = len(facts) == 0 < len(scanned.facts)
    notes = book.note_block(path, scanned, told_before=told_before)
    notes.facts["repeated"] += len(scanned.facts) - len(facts)
    offset = notes.lines - scanned.lines
    if scanned.digest is not None and not told_before:
        book.absorb(source, notes, scanned.digest)
    for fact in facts:
        notes.note(fact)
        if fact.kind == "foreign":
            continue
        engine = book.engine(source, fact)
        notes.logs[engine.name] = engine
        engine.is_vllm |= fact.origin == "vllm"
        engine.fine |= fact.stamp is not None and fact.stamp % 1 != 0
        handler = _HANDLERS.get(fact.kind)
        if handler is not None:
            evidence = Evidence(path=path, line=offset + fact.line, text=fact.text)
            _handle(handler, Seen(book, engine, fact, evidence, source))
    ended = clock.iso_stamp(scanned.digest.end or "") if scanned.digest is not None else None
    notes.cover(ended)
    for engine in notes.logs.values():
        engine.settled = engine.role


def _handle(handler: Callable[[Seen], None], seen: Seen) -> None:
    try:
        handler(seen)
    except (ValueError, OverflowError):
        # Numbers that are none, or beyond all measure: a damaged line, left out like one that was not recognised.
        seen.engine.counts["damaged"] += 1


def _declined(seen: Seen) -> None:
    seen.engine.counts["declined"] += 1
    seen.engine.votes["prefill"] += 1
    seen.mark("declined")


def _released(seen: Seen) -> None:
    seen.engine.counts["released"] += 1
    if seen.engine.settled == "decode":
        seen.book.ends(external_id(seen.data["id"]), seen.evidence)
        return
    if seen.data["old"]:
        seen.engine.votes["prefill"] += 1
    seen.mark("released")


def _load_failed(seen: Seen) -> None:
    ids = _QUOTED.findall(seen.data["ids"])
    for engine_id in ids[:MAX_ERRORS]:
        turn = seen.mark("load_failed", seen.request(engine_id))
        turn.tokens_lost = max(turn.tokens_lost or 0, int(seen.data["tokens"][:12]) // max(len(ids), 1))
    if not ids:
        seen.note()


def _config(seen: Seen) -> None:
    config = parameters.read_config(seen.data["args"])
    engine = seen.book.configure(seen.source, seen.fact, config, seen.evidence)
    engine.ttl_s = config.ttl_s or engine.ttl_s
    engine.stopping = False


def _version(seen: Seen) -> None:
    if len(seen.engine.versions) < MAX_ERRORS:
        seen.engine.versions[seen.data["version"]] = None


def _bidirectional_on(seen: Seen) -> None:
    seen.engine.bidirectional = seen.engine.bidirectional or seen.evidence
    seen.engine.ttl_s = int(seen.data["ttl"][:9])


def _engine_named(seen: Seen) -> None:
    seen.book.name_engine(seen.source, seen.fact, seen.data["engine"])


def _process_started(seen: Seen) -> None:
    seen.engine.starts += 1
    seen.engine.stopping = False


def _serving(seen: Seen) -> None:
    """Forget a start that failed: a later one did not."""
    seen.engine.serving = True
    seen.engine.notes.pop("start_failed", None)


def _raised(seen: Seen) -> None:
    """Keep what ended a start: the first exception of a process that does not serve yet."""
    if not seen.engine.serving:
        text = neutralise(f"{seen.data['error']}: {seen.data['text']}", _MAX_REASON)
        seen.engine.raised = seen.engine.raised or (text, seen.evidence)


def _start_failed(seen: Seen) -> None:
    seen.engine.serving = False
    seen.note()


def _stopping(seen: Seen) -> None:
    seen.engine.stopping = True


def _fatal(seen: Seen) -> None:
    if not seen.engine.stopping:
        seen.note()


def _stalled(seen: Seen) -> None:
    """Note that an engine stood still, unless it has yet to come up: then it compiles."""
    engine = seen.engine
    if engine.config is None or engine.serving or engine.loads:
        seen.note()


def _router_log(seen: Seen) -> None:
    seen.engine.votes["router"] += 1


def _below_threshold(seen: Seen) -> None:
    seen.engine.votes["prefill"] += 1
    turn = seen.mark("below_threshold")
    turn.remote_tokens = 0


def _matched(seen: Seen) -> None:
    params = parameters.read_params(seen.data["params"])
    _vote(seen, params.role)
    if params.role != "prefill":
        return
    seen.note(f"params_{params.state}")
    if params.handle and params.remote_tokens and int(seen.data["local"][:12]) >= params.remote_tokens:
        seen.book.covers(params.handle, Mark(seen.evidence, seen.engine, seen.fact.stamp))


def _allocated(seen: Seen) -> None:
    params = parameters.read_params(seen.data["params"])
    _vote(seen, params.role)
    if params.role == "prefill" and int(seen.data["external"][:9]) > 0:
        seen.note("read_claimed")


def _received(seen: Seen) -> None:
    params = parameters.read_params(seen.data["body"].rpartition("kv_transfer_params")[2])
    if params.role is None:
        return
    _vote(seen, params.role)
    turn = seen.mark(f"received_{params.role}", suffixed=False)
    turn.first_seen = turn.first_seen if turn.first_seen is not None else seen.fact.stamp
    if params.role == "prefill":
        turn.mark(f"params_{params.state}", Mark(seen.evidence, seen.engine, seen.fact.stamp))
        if params.handle:
            seen.wants(params.handle, turn)


def _vote(seen: Seen, role: LogRole | None) -> None:
    if role is not None:
        seen.engine.votes[role] += 1


def _aborted(seen: Seen) -> None:
    for engine_id in re.split(r"[,\s]+", seen.data["ids"].strip("[]{}"))[:MAX_ERRORS]:
        if engine_id.strip("'\""):
            seen.mark("aborted", seen.request(engine_id.strip("'\"")))


def _mark(kind: str, *, suffixed: bool = True) -> Callable[[Seen], None]:
    def mark(seen: Seen) -> None:
        seen.mark(kind, suffixed=suffixed)

    return mark


def _note(seen: Seen) -> None:
    seen.note()


def _http_error(seen: Seen) -> None:
    if seen.data["method"] != "POST" or not _SERVING.search(seen.data["route"]):
        return
    if seen.data["status"].startswith("4"):
        seen.note("refused")
        return
    seen.note("http_5xx")
    seen.engine.errors += 1
    # A turn that prefill has answered may have ended without a line, unless this router tells of decode's answers.
    if seen.engine.counts["answered"] or not any(seen.engine.calls.values()):
        _blame(seen)


def _load(seen: Seen) -> None:
    index = seen.data["engine"] or ""
    loads = seen.engine.loads
    if index in loads or len(loads) < MAX_ERRORS:
        loads.setdefault(index, Series()).add(load_sample(seen.data, seen.fact.stamp, seen.evidence))


def _transfers(seen: Seen) -> None:
    sample = transfer_sample(seen.data["pairs"], seen.fact.stamp, seen.evidence)
    if sample is None:
        return
    seen.engine.transfers.add(sample)
    counts = seen.engine.counts
    counts["transfers_succeeded"] += sample.succeeded
    counts["transfers_failed"] += sample.failed
    counts["kv_expired"] += sample.expired
    counts["late_notifications"] += sample.late_notifications
    if not sample.failed:
        counts["errors_at_expiry"] += min(sample.expired, seen.engine.errors)
    seen.engine.errors = 0
    for kind in ("failed", "expired", "late_notifications"):
        if getattr(sample, kind):
            seen.engine.note(f"counted_{kind}", seen.evidence)


def _handshake_time(seen: Seen) -> None:
    if float(seen.data["seconds"][:12]) >= SLOW_HANDSHAKE_S:
        seen.note()


def _sample(seen: Seen) -> None:
    name = seen.data["name"]
    try:
        value = float(seen.data["value"])
    except ValueError:
        return
    sample = (name, seen.data["labels"] or "", value)
    read_sample(seen.engine.snapshots, sample, seen.evidence, seen.engine.forced)


def _router_event(kind: EventKind, seen: Seen, turn: str | None, handle: str | None = None) -> None:
    seen.engine.votes["router"] += 1
    ttl, age = seen.data.get("ttl"), seen.data.get("age")
    event = RouterEvent(
        kind,
        seen.fact.stamp,
        (seen.engine.name, seen.engine.starts),
        seen.evidence,
        turn,
        handle,
        ttl_s=float(ttl) if ttl else None,
        age_s=float(age) if age else None,
    )
    seen.book.router_event(conversation_id(seen.data.get("conversation") or ""), event)


def _lookup_miss(seen: Seen) -> None:
    turn = seen.turn(suffixed=False)
    turn.first_seen = seen.fact.stamp
    _calls(seen, turn)
    _router_event("miss" if seen.data["conversation"] else "anonymous", seen, turn.id)


def _no_conversation_id(seen: Seen) -> None:
    seen.engine.votes["router"] += 1
    seen.mark("no_conversation_id", suffixed=False)


def _handle_sent(seen: Seen) -> None:
    turn = seen.turn(suffixed=False)
    turn.first_seen = seen.fact.stamp
    seen.mark("handle_sent", turn)
    _calls(seen, turn)
    seen.wants(seen.data["handle"], turn)
    _router_event("hit", seen, turn.id, seen.data["handle"])


def _handle_stored(seen: Seen) -> None:
    turn = seen.book.request(seen.data["handle"])
    turn.blocks = int(seen.data["blocks"][:9])
    seen.engine.counts["answered"] += seen.engine.calls.pop(turn.id, None) is not None
    _router_event("stored", seen, None, seen.data["handle"])


def _lookup_stale(seen: Seen) -> None:
    _router_event("stale", seen, None)


def _prefill_done(seen: Seen) -> None:
    seen.engine.votes["router"] += 1
    seen.engine.counts["prefill_done"] += 1
    turn = seen.mark("prefill_done", suffixed=False)
    turn.prefill_s = int(seen.data["ms"][:9]) / 1000
    if turn.id in seen.engine.calls:
        seen.engine.calls[turn.id] = True


def _calls(seen: Seen, turn: Turn) -> None:
    if len(seen.engine.calls) < _MAX_TYPES:
        seen.engine.calls[turn.id] = False


def _upstream_call(seen: Seen) -> None:
    """Note an error; it is about the one turn that was under way, for the line names none."""
    seen.engine.votes["router"] += 1
    calls = seen.engine.calls
    if not seen.data["status"].startswith("5"):
        ended = calls.pop(next((turn for turn, prefilled in calls.items() if prefilled), ""), None)
        seen.engine.counts["answered"] += ended is not None
        return
    seen.note("upstream_5xx")
    _blame(seen)


def _blame(seen: Seen) -> None:
    """Take a router's error for that of the one turn under way; with several it may be anybody's."""
    calls = seen.engine.calls
    for name in calls:
        seen.mark("refused" if len(calls) == 1 else "beside_error", seen.book.turn(name))
    calls.clear()


def _router_line(seen: Seen) -> None:
    seen.engine.votes["router"] += 1
    _note(seen)


_HANDLERS: Final[dict[str, Callable[[Seen], None]]] = {
    "declined": _declined,
    "released": _released,
    "read_after_release": _mark("read_after_release"),
    "push_timeout": _mark("push_timeout"),
    "skipped": _mark("skipped"),
    "load_failed": _load_failed,
    "load_recovered": _note,
    "config": _config,
    "version": _version,
    "bidirectional_on": _bidirectional_on,
    "engine_named": _engine_named,
    "process_started": _process_started,
    "started": _serving,
    "start_failed": _start_failed,
    "raised": _raised,
    "no_connector": _note,
    "nixl_missing": _note,
    "invalid_params": _note,
    "below_threshold": _below_threshold,
    "matched": _matched,
    "allocated": _allocated,
    "received": _received,
    "added": _mark("added"),
    "read_started": _mark("read_started"),
    "read_finished": _mark("read_finished"),
    "aborted": _aborted,
    "aborted_outside": _mark("aborted", suffixed=False),
    "internal_error": _mark("internal_error", suffixed=False),
    "engine_dead": _mark("engine_dead", suffixed=False),
    "fatal": _fatal,
    "stopping": _stopping,
    "router_line": _router_log,
    "stalled": _stalled,
    "crash": _note,
    "http_error": _http_error,
    "load": _load,
    "transfers": _transfers,
    "preempted": _note,
    "router_ready": _router_line,
    "toy_ready": _router_line,
    "router_error": _router_line,
    "connect_error": _note,
    "sidecar_error": _note,
    "lookup_miss": _lookup_miss,
    "lookup_stale": _lookup_stale,
    "handle_sent": _handle_sent,
    "handle_stored": _handle_stored,
    "no_conversation_id": _no_conversation_id,
    "prefill_done": _prefill_done,
    "upstream_call": _upstream_call,
    "native_failure": _note,
    "native_notification": _note,
    "telemetry_off": _note,
    "slow_transport": _note,
    "handshake_time": _handshake_time,
    "sample": _sample,
    "record": records.add_record,
    "no_params": _router_line,
    **peers.HANDLERS,
    **routing.HANDLERS,
}

KINDS: Final = frozenset(_HANDLERS)
"""The kinds of facts that change the casebook."""
