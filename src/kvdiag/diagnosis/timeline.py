"""One request or one conversation as a time line: what router, prefill and decode said, in causal order.

Within a log, lines keep their order. Across logs the path of a turn decides (look-up, match, read, compute, hand-off,
decode, retention), never the clocks: two hosts' clocks are not compared.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import msgspec

from kvdiag.diagnosis import clock
from kvdiag.diagnosis.ids import external_id
from kvdiag.diagnosis.render.neutral import neutral
from kvdiag.diagnosis.report import Evidence, TurnReport  # noqa: TC001 - msgspec resolves annotations at run time
from kvdiag.diagnosis.split import needs
from kvdiag.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvdiag.diagnosis.casebook import Casebook
    from kvdiag.diagnosis.report import Report
    from kvdiag.diagnosis.turns import Mark, Turn
    from kvdiag.events import KvEvent

_MOST_NAMED: Final = 10
_ARRIVAL, _SENT, _MATCH, _READ, _COMPUTE, _PREFILLED, _HANDOFF, _DECODE, _KEPT, _ENDED, _LATER = range(11)

_STAGES: Final[dict[str, tuple[int, str]]] = {
    "no_conversation_id": (_ARRIVAL, "came without a conversation id"),
    "handle_sent": (_SENT, "was sent to prefill with decode's handle"),
    "arrived": (_ARRIVAL, "arrived at the scheduler"),
    "retried": (_PREFILLED, "had its prefill call repeated"),
    "refused": (_PREFILLED, "was answered with an error, says the router"),
    "fell_back": (_HANDOFF, "was left to decode alone"),
    "prefill_timed": (_PREFILLED, "was prefilled"),
    "routed_prefill": (_SENT, "was sent to prefill"),
    "received_prefill": (_MATCH, "reached prefill"),
    "added": (_MATCH, "was put into the queue"),
    "read_started": (_READ, "began to read blocks"),
    "read_finished": (_READ, "had read its blocks"),
    "params_complete": (_MATCH, "carried a usable handle"),
    "params_incomplete": (_MATCH, "carried a handle with missing fields"),
    "params_none": (_MATCH, "carried no handle"),
    "event_match": (_MATCH, "was matched"),
    "local_hit": (_MATCH, "was covered by prefill's own cache"),
    "below_threshold": (_MATCH, "was below the recompute threshold"),
    "declined": (_READ, "had its read declined: the blocks had expired"),
    "event_decline": (_READ, "had its read declined"),
    "event_decline_in_part": (_READ, "read back only the part that agrees with what decode holds"),
    "event_transfer": (_READ, "moved KV"),
    "event_failure": (_READ, "had a failed transfer"),
    "read_after_release": (_READ, "had blocks read after they were released"),
    "skipped": (_COMPUTE, "was given up by the connector"),
    "load_failed": (_COMPUTE, "was failed by the scheduler: its KV could not be loaded"),
    "internal_error": (_PREFILLED, "was answered with an error"),
    "prefill_done": (_PREFILLED, "was prefilled"),
    "event_retain_for_decode": (_PREFILLED, "had its blocks kept for decode"),
    "event_release_by_decode": (_DECODE, "had its blocks released"),
    "routed_decode": (_HANDOFF, "was sent to decode"),
    "received_decode": (_HANDOFF, "reached decode"),
    "push_timeout": (_HANDOFF, "waited in vain for pushed KV"),
    "aborted": (_DECODE, "was aborted"),
    "engine_dead": (_DECODE, "met a dead engine"),
    "stored": (_KEPT, "left a handle with the router"),
    "event_retain": (_KEPT, "had its blocks kept for the next turn"),
    "record": (_ENDED, "ended"),
    "released": (_LATER, "had its blocks released"),
    "event_release": (_LATER, "had its blocks released"),
}
"""When a fact belongs, by its kind, and how it reads after the turn's name. Failed transfers have many kinds: `_READ`."""
_ON_DECODE: Final = {_MATCH: _HANDOFF, _READ: _HANDOFF, _COMPUTE: _DECODE}
"""What prefill does on reading back, decode does on the hand-off."""
_OWNERS_VIEW: Final = frozenset({"released", "read_after_release", "event_release", "event_retain"})


class Moment(msgspec.Struct, kw_only=True):
    """One thing that was said about a turn."""

    who: str | None
    """The role of the log; None where nothing tells it."""
    at: str | None
    """By that log's own clock."""
    what: str
    evidence: Evidence


class Passage(msgspec.Struct, kw_only=True):
    """One turn with its moments."""

    turn: TurnReport
    moments: list[Moment]


class Timeline(msgspec.Struct, kw_only=True):
    """What `kvdiag explain` has to say."""

    schema: str = "kvdiag.timeline/1"
    name: str
    passages: list[Passage]
    needs: dict[str, str] = msgspec.field(default_factory=dict)
    """Input that would tell the parts of the latency that these turns leave open."""


class _Entry(msgspec.Struct, frozen=True):
    stage: int
    moment: Moment


def explain(name: str, book: Casebook, report: Report) -> Timeline:
    """Return the time line of a request or conversation.

    `book` holds the facts that `report`, with its turns, was assembled from. Raises InputError where nothing is known
    by that name, or several are.
    """
    rows = _chosen(name, report.per_turn or [])
    stored = {
        external_id(event.handle): event
        for events in book.conversations.values()
        for event in events
        if event.kind == "stored" and event.handle
    }
    passages = []
    for row in rows:
        turn = book.turns[row.request_id]
        entries = list(_entries(turn, book))
        if event := stored.get(turn.id):
            entries.append(_entry("stored", "router", event.stamp, event.evidence))
        passages.append(Passage(turn=row, moments=merged(entries)))
    return Timeline(name=name, passages=passages, needs=needs(row.split for row in rows))


def merged(entries: Iterable[_Entry]) -> list[Moment]:
    """Merge the logs' sequences by stage; each log's own order is kept."""
    logs: dict[str, list[_Entry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: entry.moment.evidence.line):
        logs[entry.moment.evidence.path].append(entry)
    moments: dict[tuple[str, int], Moment] = {}
    while logs:
        path = min(logs, key=lambda path: (logs[path][0].stage, path))
        moment = logs[path].pop(0).moment
        moments.setdefault((path, moment.evidence.line), moment)
        if not logs[path]:
            del logs[path]
    return list(moments.values())


def _chosen(name: str, turns: list[TurnReport]) -> list[TurnReport]:
    wanted = {name, external_id(name), external_id(name, suffixed=False)}
    found = [turn for turn in turns if turn.request_id in wanted or turn.conversation == name]
    if not found and name:
        found = [
            turn for turn in turns if turn.request_id.startswith(name) or (turn.conversation or "").startswith(name)
        ]
    subjects = list(dict.fromkeys(turn.conversation or turn.request_id for turn in found))
    if len(subjects) > 1:
        raise InputError(f"{name!r} is the beginning of {len(subjects)} names ({_some(subjects)}); write more of it")
    if not found:
        raise InputError(f"{name!r} is neither a request nor a conversation in these inputs; {_known(name, turns)}")
    return sorted(found, key=lambda turn: turn.turn or 0)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return neutral(", ".join(names[:_MOST_NAMED])) + more


def _known(name: str, turns: list[TurnReport]) -> str:
    names = list(dict.fromkeys([turn.conversation or turn.request_id for turn in turns]))
    if not names:
        return "no turn was recognised"
    near = difflib.get_close_matches(name, names[:5000], n=3, cutoff=0.4) or names[:3]
    return f"known are {neutral(', '.join(near))}" + (
        f" and {len(names) - len(near)} more" if len(names) > len(near) else ""
    )


def _entries(turn: Turn, book: Casebook) -> Iterator[_Entry]:
    yield from _looked_up(turn)
    yield from _marked(turn.marks)
    if turn.record is not None and turn.record_at is not None:
        moment = Moment(who="router", at=turn.record.ts, what=_STAGES["record"][1], evidence=turn.record_at)
        yield _Entry(_ENDED, moment)
    if turn.handle and (before := book.turns.get(external_id(turn.handle))):
        yield from _owners_view(before)


def _owners_view(before: Turn) -> Iterator[_Entry]:
    """Yield what decode said about the blocks that the turn was to read; all but a late read was before it."""
    for kind, said in before.marks.items():
        decodes = [mark for mark in said if mark.engine.role != "prefill"]
        if kind in _OWNERS_VIEW and decodes:
            stage = _READ if kind == "read_after_release" else _ARRIVAL
            for entry in _marked({kind: decodes}):
                what = f"the turn before {entry.moment.what}"
                yield _Entry(stage, msgspec.structs.replace(entry.moment, what=what))


def _looked_up(turn: Turn) -> Iterator[_Entry]:
    if turn.lookup is None:
        return
    *earlier, last = sorted(turn.lookup.evidence, key=lambda evidence: evidence.line)
    for evidence in earlier:
        yield _Entry(_ARRIVAL, Moment(who="router", at=None, what="had seen this before", evidence=evidence))
    yield _Entry(
        _ARRIVAL, Moment(who="router", at=None, what=f"looked its handle up: {turn.lookup.result}", evidence=last)
    )


def _marked(marks: dict[str, list[Mark]]) -> Iterator[_Entry]:
    moved = any(mark.data["event"].direction == "decode_to_prefill" for mark in marks.get("event_transfer", ()))
    for kind, said in marks.items():
        for mark in said:
            event = mark.data.get("event")
            entry = _entry(_spelled(kind, event, moved=moved), mark.engine.role, mark.stamp, mark.evidence)
            yield entry if event is None else _detailed(entry, event)


def _spelled(kind: str, event: KvEvent | None, *, moved: bool) -> str:
    """Tell what prefill keeps for decode from what decode keeps for the next turn, a read in part from none."""
    if kind == "event_decline" and moved and event is not None and event.cause == "prefix_diverged":
        return "event_decline_in_part"
    if event is None or event.direction != "prefill_to_decode":
        return kind
    return {"event_retain": "event_retain_for_decode", "event_release": "event_release_by_decode"}.get(kind, kind)


def _entry(kind: str, role: str | None, stamp: float | None, evidence: Evidence) -> _Entry:
    stage, what = _STAGES.get(kind, (_READ, kind.replace("_", " ")))
    if role == "decode":
        stage = _ON_DECODE.get(stage, stage)
    return _Entry(stage, Moment(who=role, at=clock.render(stamp), what=what, evidence=evidence))


def _detailed(entry: _Entry, event: KvEvent) -> _Entry:
    facts = {
        "cause": event.cause and (f"{event.cause}/{event.detail}" if event.detail else event.cause),
        "direction": event.direction,
        "tokens": event.tokens,
        "local": event.local_tokens,
        "bytes": event.bytes,
        "seconds": event.seconds,
        "blocks": event.blocks,
    }
    told = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in facts.items()
        if value is not None
    )
    handed_off = event.direction == "prefill_to_decode" and entry.stage == _READ
    what = f"{entry.moment.what} ({told})" if told else entry.moment.what
    return _Entry(_HANDOFF if handed_off else entry.stage, msgspec.structs.replace(entry.moment, what=what))
