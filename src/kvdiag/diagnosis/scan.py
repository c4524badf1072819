"""From a block of bytes to facts: a pure function, so that blocks can be scanned on every core.

Hyperscan looks for all needles at once; only the lines that hold one are ever touched by Python. The needle says
which pattern may fit, the pattern's shape, matched from the start of the message, decides.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Final

import hyperscan
import msgspec

from kvdiag.diagnosis import clock
from kvdiag.diagnosis.calm import Skimmer
from kvdiag.diagnosis.digest import Digest
from kvdiag.diagnosis.facts import Fact, Scanned
from kvdiag.diagnosis.lines import Line, parse_line, unglue
from kvdiag.diagnosis.partial import rejoin, spell_out
from kvdiag.diagnosis.patterns import PATTERNS, Pattern
from kvdiag.diagnosis.text import ends, neutralise
from kvdiag.diagnosis.uneventful import Uneventful
from kvdiag.events import KvEvent, TurnRecord

if TYPE_CHECKING:
    from kvdiag.diagnosis.calm import HitLine

_HEAD: Final = 48 << 10
_TAIL: Final = 16 << 10
_SNIFF: Final = 4096
_BINARY_SHARE: Final = 0.2
_CONTROLS: Final = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b"))
_ACCEPTED: Final = b'completions HTTP/1.1" 20'
_ACCEPTED_JSON: Final = b'completions HTTP/1.1\\" 20'
_OWN: Final = b'{"schema":"kvdiag.'
_RECORD: Final = msgspec.json.Decoder(TurnRecord | KvEvent, strict=False)
_RECORDS: Final = frozenset(number for number, pattern in enumerate(PATTERNS) if pattern.kind == "record")
# Beyond this many hits in one line somebody quotes logs; the first ones decide.
_MAX_HITS: Final = 32


@cache
def _database() -> hyperscan.Database:
    """Return the needles compiled; what is found is known by its pattern's number."""
    needles = [(needle, number) for number, pattern in enumerate(PATTERNS) for needle in _needles(pattern)]
    expressions, numbers = zip(*needles, strict=True)
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(expressions=expressions, ids=numbers, elements=len(needles), flags=[0] * len(needles))
    return database


def _needles(pattern: Pattern) -> list[bytes]:
    if pattern.find is not None:
        return [pattern.find.encode()]
    return [re.escape(literal).encode() for literal in pattern.spellings or (pattern.needle,)]


def scan(block: bytes, felt_s: float | None = None) -> Scanned:
    """Return the facts of `block`, whole lines of one file.

    Turns below `felt_s` seconds to first token that went well are only counted; with None every turn is handed on.
    """
    if _is_binary(block):
        return Scanned(block.count(b"\n"), [], 0, {}, binary=True)
    if b"\x00" in block:
        block = block.replace(b"\x00", b"")
    whole, numbers = rejoin(spell_out(block))
    facts: list[Fact] = []
    origins: Counter[str] = Counter()
    digest = Digest(felt_s)
    number, counted = 1, 0
    for start, stop, candidates in _worth_reading(whole, digest):
        record = _record(whole, start, stop) if candidates[0] in _RECORDS else None
        if record is not None and digest.absorb(record):
            continue
        number += whole.count(b"\n", counted, start)
        counted = start
        line = number if numbers is None else numbers[number - 1]
        text = _decode(whole[start:stop])
        facts += _read(text, line, candidates, origins) if record is None else [_recorded(record, line, text, origins)]
    lines = number - 1 + block.count(b"\n", counted) if numbers is None else block.count(b"\n")
    lines += bool(block) and not block.endswith(b"\n")
    return Scanned(lines, facts, _accepted(block), dict(origins), digest=digest)


def _worth_reading(block: bytes, digest: Digest) -> list[HitLine]:
    """Return the lines to take apart, in their order."""
    lines = _hit_lines(block)
    if digest.felt_s is not None and (left_out := Uneventful(block, digest).look_at(lines)):
        lines = [line for place, line in enumerate(lines) if place not in left_out]
    return sorted(Skimmer(block, digest).worth_reading(lines))


def _record(block: bytes, start: int, stop: int) -> TurnRecord | KvEvent | None:
    """Return one of our own records that stands on a line of its own; None where it is wrapped, or another version."""
    if not block.startswith(_OWN, start):
        return None
    try:
        return _RECORD.decode(memoryview(block)[start:stop])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _recorded(record: TurnRecord | KvEvent, number: int, text: str, origins: Counter[str]) -> Fact:
    origins["json"] += 1
    return Fact(
        "record", number, "", "json", None, clock.iso_stamp(record.ts), {"record": record}, neutralise(ends(text))
    )


def _hit_lines(block: bytes) -> list[HitLine]:
    """Return (start, stop, pattern ids) of every line that holds a needle."""
    ends, patterns = array("q"), array("H")

    def on_match(pattern: int, _start: int, end: int, _flags: int, _context: object) -> None:
        ends.append(end)
        patterns.append(pattern)

    _database().scan(block, match_event_handler=on_match)
    lines: list[HitLine] = []
    stop = -1
    for end, pattern in zip(ends, patterns, strict=True):
        if end <= stop:
            candidates = lines[-1][2]
            if pattern not in candidates and len(candidates) < _MAX_HITS:
                candidates.append(pattern)
            continue
        start = block.rfind(b"\n", 0, end) + 1
        stop = block.find(b"\n", end)
        stop = len(block) if stop < 0 else stop
        lines.append((start, stop, [pattern]))
    return lines


def _read(text: str, number: int, candidates: list[int], origins: Counter[str]) -> list[Fact]:
    line = parse_line(text)
    origins[line.origin] += 1
    facts = _facts(line, text, number, candidates)
    if len(facts) < len(candidates) or " pid=" in line.message:
        facts = _glued_facts(line, text, number, candidates) or facts
    return facts * (1 + min(line.repeated, 1000)) if line.repeated else facts


def _glued_facts(line: Line, text: str, number: int, candidates: list[int]) -> list[Fact]:
    """Return the facts of records glued together, as far as each record before the last is known to hold no free text."""
    facts: list[Fact] = []
    records = unglue(line)
    for record in records if len(records) > 1 else ():
        found = _facts(record, text, number, candidates)
        facts += found
        if not found:
            break
    return facts


def _facts(line: Line, text: str, number: int, candidates: list[int]) -> list[Fact]:
    """Return the facts of one record that stands in `text`, by the patterns that may fit it."""
    facts: list[Fact] = []
    for candidate in sorted(candidates) if len(candidates) > 1 else candidates:
        pattern = PATTERNS[candidate]
        if line.origin not in pattern.origins:
            continue
        match = pattern.shape.match(line.message)
        if match is None:
            continue
        evidence = facts[0].text if facts else _evidence(line, text)
        data = match.groupdict() if line.record is None else line.record
        if pattern.fixed:
            data.update(pattern.fixed)
        facts.append(Fact(pattern.kind, number, line.label, line.origin, line.pid, line.stamp, data, evidence))
    return facts


def _evidence(line: Line, text: str) -> str:
    """Return what to show of the line: without its wrapper where that would only hide the message."""
    return neutralise(text if line.origin != "json" and not text.startswith("{") else line.message or text)


def _decode(raw: bytes) -> str:
    if len(raw) > _HEAD + _TAIL:
        raw = raw[:_HEAD] + raw[-_TAIL:]
    return raw.decode("utf-8", "replace")


def _accepted(block: bytes) -> int:
    count = block.count(_ACCEPTED)
    return count if count or not block.startswith(b"{") else block.count(_ACCEPTED_JSON)


def _is_binary(block: bytes) -> bool:
    """Tell whether hardly anything at the start is text; holes of NUL bytes, as a full disk leaves them, do not count."""
    head = block[:_SNIFF].translate(None, b"\x00")
    foreign = len(head) - len(head.translate(None, _CONTROLS)) + head.decode("utf-8", "replace").count("\ufffd")
    return foreign > len(head) * _BINARY_SHARE if head else bool(block)
