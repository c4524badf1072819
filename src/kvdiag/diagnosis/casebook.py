"""What is known so far: engines, turns and conversations, in bounded space."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from kvdiag.diagnosis import clock
from kvdiag.diagnosis.conversations import RouterEvent, look_ups
from kvdiag.diagnosis.engines import EngineLog
from kvdiag.diagnosis.ids import external_id, spellings
from kvdiag.diagnosis.judge import judge
from kvdiag.diagnosis.latency import Baseline
from kvdiag.diagnosis.patterns import PATTERNS
from kvdiag.diagnosis.series import Series
from kvdiag.diagnosis.summary import Summary
from kvdiag.diagnosis.turns import Lookup, Mark, Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdiag.diagnosis.digest import Digest, Group
    from kvdiag.diagnosis.facts import Fact, Scanned
    from kvdiag.diagnosis.options import LogRole
    from kvdiag.diagnosis.parameters import EngineConfig
    from kvdiag.diagnosis.replay import Replay
    from kvdiag.diagnosis.report import Evidence
    from kvdiag.diagnosis.turns import Teller

MAX_TURNS: Final = 20_000
MAX_EVENTS: Final = 40_000
_MAX_READERS: Final = 20_000
_MAX_COUNTED: Final = 50_000
_MAX_LOGS: Final = 4096
_MAX_PIDS: Final = 4096
_FAILURES: Final = ("declined", "internal_error", "load_failed", "refused", "engine_dead", "aborted")
ROUTING: Final = frozenset({pattern.kind for pattern in PATTERNS if "product" in pattern.fixed})
"""Facts that tell whose router wrote a file."""
_NO_BASELINE: Final = Baseline()


@dataclass(slots=True)
class FileNotes:
    """What was seen of one file."""

    path: str
    lines: int = 0
    accepted: int = 0
    facts: Counter[str] = field(default_factory=Counter)
    origins: Counter[str] = field(default_factory=Counter)
    systems: Counter[str] = field(default_factory=Counter)
    """Lines of systems that are not vLLM, by their name."""
    products: Counter[str] = field(default_factory=Counter)
    """Lines of other projects' routers, by their name."""
    dated: tuple[float, float] | None = None
    """The earliest and the latest stamp that names its year."""
    undated: tuple[float, float] | None = None
    """The first and the last of the others: no year tells which is earlier."""
    binary: bool = False
    problem: str | None = None
    """Why the file could not be read, or not to its end."""
    logs: dict[str, EngineLog] = field(default_factory=dict)

    def note(self, fact: Fact) -> None:
        """Count a fact, and stretch the time that the file covers to it."""
        self.facts[fact.kind] += 1
        self.cover(fact.stamp)
        if (product := fact.data.get("product")) and fact.kind in ROUTING:
            self.products[product] += 1
        if fact.kind == "foreign":
            self.systems[str(fact.data.get("system", "another system"))] += 1

    def cover(self, stamp: float | None) -> None:
        """Stretch the time that the file covers to `stamp`."""
        if stamp is None:
            return
        if clock.dated(stamp):
            low, high = self.dated or (stamp, stamp)
            self.dated = min(low, stamp), max(high, stamp)
        else:
            self.undated = (self.undated or (stamp, stamp))[0], stamp

    @property
    def span(self) -> tuple[float | None, float | None]:
        """Return the time that the file covers; stamps that name no year are taken for those next to the ones that do."""
        if self.dated is None or self.undated is None:
            return self.dated or self.undated or (None, None)
        low, high = self.dated
        placed = [clock.nearest_year(stamp, low) for stamp in self.undated]
        return min(low, *placed), max(high, *placed)


@dataclass(slots=True)
class _Stream:
    """The engines that share one stream of lines; nearly always one."""

    engines: list[EngineLog]
    by_pid: dict[int, EngineLog] = field(default_factory=dict)


@dataclass(slots=True)
class Wanted:
    """The request or conversation that somebody asks for, by its name or the beginning of it."""

    name: str
    turns: set[str] = field(default_factory=set)
    """Turns of the conversation, by a router's lines."""

    def note(self, conversation: str, turn_id: str) -> None:
        """Note that a turn belongs to a conversation."""
        if conversation.startswith(self.name) and len(self.turns) < MAX_TURNS:
            self.turns.add(turn_id)

    def names(self, turn: Turn) -> bool:
        """Tell whether the turn may be meant."""
        spelled = (self.name, external_id(self.name), external_id(self.name, suffixed=False))
        return turn.id in self.turns or turn.id.startswith(spelled) or (turn.conversation or "").startswith(self.name)


@dataclass(slots=True)
class Casebook:
    """Collects facts in the order of the logs; the rules read it.

    When there are more turns or router events than the bounds allow, the oldest are judged with what is known of
    them by then, and what they add up to is all that remains of them.
    """

    forced_role: Callable[[str], LogRole | None] = lambda _name: None
    most_turns: int = MAX_TURNS
    files: dict[str, FileNotes] = field(default_factory=dict)
    streams: dict[tuple[str, str], _Stream] = field(default_factory=dict)
    turns: OrderedDict[str, Turn] = field(default_factory=OrderedDict)
    conversations: OrderedDict[str, list[RouterEvent]] = field(default_factory=OrderedDict)
    readers: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """Which turn was to read a handle, by the handle's request id on decode."""
    covered: OrderedDict[str, Mark] = field(default_factory=OrderedDict)
    """Handles that prefill had no need of, its own prefix cache holding as much, by the same id."""
    ended: OrderedDict[str, Evidence] = field(default_factory=OrderedDict)
    """Requests whose blocks decode let go of by TTL, the normal end of a conversation, by their external id."""
    calm: dict[Group, Series[float]] = field(default_factory=dict)
    """Times to first token of turns that were only counted."""
    per_token: Series[float] = field(default_factory=Series)
    """Seconds of prefill for each token that such turns computed."""
    counted: dict[str, str] = field(default_factory=dict)
    """How such turns ended, the last ones of them, by their external ids."""
    matched: int = 0
    """Requests that prefill matched and nothing happened to, by its events."""
    replays: dict[str, Replay] = field(default_factory=dict)
    """What each log told last, by its name."""
    closed: Summary = field(default_factory=Summary)
    """What the turns that had to be let go of add up to."""
    wanted: Wanted | None = None
    """Whose turns are kept in any case."""
    set_aside: dict[str, Turn] = field(default_factory=dict)
    let_go: int = 0
    """How many turns these are."""
    event_count: int = 0

    @property
    def engines(self) -> list[EngineLog]:
        """Return every log that was told apart."""
        return [engine for stream in self.streams.values() for engine in stream.engines]

    @property
    def unread(self) -> list[FileNotes]:
        """Return the files that could not be read, or not to their end."""
        return [notes for notes in self.files.values() if notes.problem]

    def with_role(self, role: LogRole) -> list[EngineLog]:
        """Return the logs of one role."""
        return [engine for engine in self.engines if engine.role == role]

    def file(self, path: str) -> FileNotes:
        """Return the notes on one file."""
        return self.files.setdefault(path, FileNotes(path))

    def note_block(self, path: str, scanned: Scanned, *, told_before: bool = False) -> FileNotes:
        """Add what was counted in a block of `path` and return the file's notes."""
        notes = self.file(path)
        notes.lines += scanned.lines
        notes.accepted += 0 if told_before else scanned.accepted
        notes.origins.update(scanned.origins)
        notes.binary |= scanned.binary
        return notes

    def absorb(self, source: str, notes: FileNotes, digest: Digest) -> None:
        """Add what lines add up to that were only counted."""
        notes.facts.update(digest.kinds)
        notes.cover(clock.iso_stamp(digest.begin or ""))
        if digest.votes:
            engine = self._stream(source, "").engines[-1]
            engine.votes.update(digest.votes)
            engine.counts.update(digest.counts)
            notes.logs[engine.name] = engine
        self.matched += digest.matched
        self.closed.add(digest)
        for name in digest.ids.keys() & self.turns.keys():
            self.turns[name].counted = digest.ids[name]
        self.counted.update(digest.ids)
        for name in list(islice(self.counted, max(len(self.counted) - _MAX_COUNTED, 0))):
            del self.counted[name]
        for pace in digest.per_token:
            self.per_token.add(pace)
        for group, times in digest.times.items():
            kept = self.calm.setdefault(group, Series())
            for taken in times:
                kept.add(taken)

    def engine(self, source: str, fact: Fact) -> EngineLog:
        """Return the log that a fact belongs to."""
        stream = self._stream(source, fact.label)
        if fact.pid is not None and fact.pid in stream.by_pid:
            return stream.by_pid[fact.pid]
        return stream.engines[-1]

    def _stream(self, source: str, label: str) -> _Stream:
        key = (source, label)
        if key not in self.streams and len(self.streams) >= _MAX_LOGS:
            key = (source, "")
        if key not in self.streams:
            name = f"{source} {label}".strip()
            self.streams[key] = _Stream([EngineLog(name, self.forced_role(source) or self.forced_role(name))])
        return self.streams[key]

    def configure(self, source: str, fact: Fact, config: EngineConfig, evidence: Evidence) -> EngineLog:
        """Note start-up arguments; those of another role or port open a log of their own in the same stream."""
        stream = self._stream(source, fact.label)
        engine = next((known for known in stream.engines if known.config and known.config.same_engine(config)), None)
        if engine is None:
            engine = stream.engines[-1]
            engine = self._split(stream, engine) if engine.configs else engine
        stream.engines.remove(engine)
        stream.engines.append(engine)
        if fact.pid is not None and stream.by_pid.get(fact.pid, engine) is not engine:
            # Another engine's process had this id: logs of two containers, one after the other. Other ids are void too.
            stream.by_pid.clear()
        if engine.configs:
            engine.former_ids.update(engine.engine_ids)
            engine.engine_ids.clear()
        engine.configs.append((config, evidence))
        self.name_engine(source, fact, config.engine_id, engine)
        return engine

    @staticmethod
    def _split(stream: _Stream, engine: EngineLog) -> EngineLog:
        other = EngineLog(engine.name)
        stream.engines.append(other)
        return other

    def name_engine(self, source: str, fact: Fact, engine_id: str | None, engine: EngineLog | None = None) -> None:
        """Note the engine id that a process goes by."""
        stream = self._stream(source, fact.label)
        if engine is None:
            owners = [known for known in stream.engines if engine_id in known.engine_ids]
            engine = owners[0] if owners else self.engine(source, fact)
        if engine_id and len(engine.engine_ids) < _MAX_PIDS:
            engine.engine_ids[engine_id] = None
        if fact.pid is not None and (len(stream.by_pid) < _MAX_PIDS or fact.pid in stream.by_pid):
            stream.by_pid[fact.pid] = engine

    def turn(self, turn_id: str) -> Turn:
        """Return the turn of this external id, the oldest one being closed when there are too many."""
        turn = self.turns.get(turn_id) or self.set_aside.get(turn_id)
        if turn is None:
            turn = self.turns[turn_id] = Turn(turn_id, counted=self.counted.get(turn_id))
            if len(self.turns) > self.most_turns:
                self._close(*self.turns.popitem(last=False))
        return turn

    def _close(self, turn_id: str, turn: Turn) -> None:
        """Let go of a turn: what it adds up to remains, and the turn itself if somebody asks for it by name."""
        if self.wanted is not None and len(self.set_aside) < MAX_TURNS and self.wanted.names(turn):
            self.set_aside[turn_id] = turn
            return
        self.let_go += 1
        self.closed.count(turn, judge(turn, self), _NO_BASELINE)

    def request(self, engine_id: str, teller: Teller | None = None) -> Turn:
        """Return the turn that an engine's line names, by its id without the suffix that engines add.

        An engine that adds none gives itself away where one process spells two requests alike but for that end.
        """
        likely, whole = spellings(engine_id)
        turn = self.turns.get(whole) or self.turn(likely)
        if teller is None or whole in {likely, turn.id} or len(turn.spelled) >= _MAX_PIDS:
            return turn
        known = turn.spelled.setdefault(teller, whole)
        return self.turn(whole) if known != whole and known[:-8] == whole[:-8] else turn

    def named(self, turn_id: str) -> Turn:
        """Return the turn of an id that has no suffix: where engines spell one the same, theirs had none either."""
        likely = external_id(turn_id)
        turn = self.turns.get(likely)
        if turn is not None and turn_id not in self.turns and turn_id in turn.spelled.values():
            del self.turns[likely]
            turn.id = turn_id
            self.turns[turn_id] = turn
        return self.turn(turn_id)

    def wants(self, handle: str, turn_id: str) -> None:
        """Note that a turn was to read the blocks of this request on decode."""
        self.readers[handle] = turn_id
        if len(self.readers) > _MAX_READERS:
            self.readers.popitem(last=False)

    def ends(self, turn_id: str, evidence: Evidence) -> None:
        """Note that decode let go of a turn's blocks by TTL."""
        self.ended[turn_id] = evidence
        if len(self.ended) > _MAX_READERS:
            self.ended.popitem(last=False)

    def covers(self, handle: str, mark: Mark) -> None:
        """Note that prefill's own prefix cache covered what this handle offered."""
        self.covered.setdefault(handle, mark)
        if len(self.covered) > _MAX_READERS:
            self.covered.popitem(last=False)

    def router_event(self, conversation: str, event: RouterEvent) -> None:
        """Add a router's line to its conversation, closing the one idle for longest when there are too many."""
        self.conversations.setdefault(conversation, []).append(event)
        self.conversations.move_to_end(conversation)
        self.event_count += 1
        if self.wanted is not None and event.turn:
            self.wanted.note(conversation, event.turn)
        while self.event_count > MAX_EVENTS:
            oldest, events = self.conversations.popitem(last=False)
            self.event_count -= len(events)
            self.settle(oldest, events)

    def settle(self, conversation: str, events: list[RouterEvent]) -> None:
        """Write the look-up of each turn of a conversation to its turn."""
        eras = {event.era[0] for event in events}
        if len(eras) > 1 and all(event.stamp is not None for event in events):
            events = sorted(events, key=lambda event: (event.stamp, event.era, event.evidence.line))
        failed = frozenset(event.turn for event in events if event.turn and self._failed(event.turn))
        for outcome in look_ups(events, failed):
            turn = self.turn(outcome.turn)
            turn.conversation = conversation or None
            turn.number = outcome.number if conversation else None
            turn.lookup = Lookup(outcome.result, outcome.evidence, outcome.certain, outcome.gap_s)
            turn.handle = turn.handle or outcome.handle

    def _failed(self, turn_id: str) -> bool:
        turn = self.turns.get(turn_id)
        if turn is None:
            return False
        if turn.failures or turn.seen(*_FAILURES) or (turn.blocks is None and turn.seen("beside_error")):
            return True
        return turn.is_unanswered and any(engine.counts["prefill_done"] for engine in self.engines)

    def settle_all(self) -> None:
        """Settle what is still open; called before the rules read the casebook."""
        self.turns.update(self.set_aside)
        self._join_attempts()
        for conversation, events in list(self.conversations.items()):
            self.settle(conversation, events)
        for handle, mark in self.covered.items():
            self.turn(self.readers.get(handle, f"reader of {external_id(handle)}")).mark("local_hit", mark)

    def _join_attempts(self) -> None:
        """Join what a router tried again to its turn: engines see one id several times, with a suffix for each attempt."""
        for turn in list(self.turns.values()):
            whole = self.turns.get(external_id(turn.id))
            if whole is not None and whole is not turn and (whole.record is not None or whole.counted is not None):
                whole.absorb(self.turns.pop(turn.id))
