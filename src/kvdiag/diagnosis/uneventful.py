"""Lines of single turns that went well, told by their bytes: counted, or left out where they say nothing more.

Only lines laid out as their writer lays them out are looked at; in any other layout they are read like all others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvdiag.diagnosis.digest import SENT, length_class
from kvdiag.diagnosis.ids import external_id
from kvdiag.diagnosis.patterns import PATTERNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvdiag.diagnosis.calm import HitLine
    from kvdiag.diagnosis.digest import Digest

_KEPT: Final = 256
_PROXY: Final = rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[INFO\] disagg_proxy: "
_SENT: Final = re.compile(_PROXY + rb"\[([^\s\]]{1,200})\] conv=([^:\n]{1,256}): sending D's cached blocks")
_DONE: Final = re.compile(_PROXY + rb"\[([^\s\]]{1,200})\] Prefill done in (\d{1,6})ms")
_STORED: Final = re.compile(
    _PROXY + rb"conv=([^:\n]{1,256}): cached D blocks \(remote_request_id=([^,)\s]{1,300}), blocks=(\d{1,9})\)"
)
_OTHER: Final = re.compile(rb"conv=([^:\n]{1,256}): ")
_READ: Final = re.compile(
    rb"(?:\(\w{1,60} pid=\d{1,9}\) )?DEBUG \d\d-\d\d (\d\d:\d\d:\d\d) \[[^\]\n]{1,200}\] "
    rb"(?:start_load_kv|Finished recving KV transfer) for request ([^\s,;'\"{}]{1,300})"
)


def _numbers(*kinds: str) -> frozenset[int]:
    return frozenset(number for number, pattern in enumerate(PATTERNS) if pattern.kind in kinds)


_SENDS, _DONES, _STORES = _numbers("handle_sent"), _numbers("prefill_done"), _numbers("handle_stored")
_MISSES: Final = _numbers("lookup_miss", "lookup_stale")
_STARTS, _ENDS = _numbers("read_started"), _numbers("read_finished")


@dataclass(slots=True)
class _Hit:
    """One turn that was sent to prefill with a handle, as far as its lines were seen. Numbers are places in a list."""

    turn: bytes
    sent: int
    done: int | None = None
    taken_s: float = 0.0
    stored: int | None = None
    blocks: int = 0
    before: _Hit | None = None
    """The hit before it, while that is still to be decided on."""

    def calm(self, felt_s: float) -> bool:
        """Tell whether it is known to have gone well."""
        return self.done is not None and self.stored is not None and self.taken_s < felt_s


class Uneventful:
    """Finds, among the lines of one block, those that need not be taken apart."""

    def __init__(self, block: bytes, digest: Digest) -> None:
        self._block = block
        self._digest = digest
        self._felt_s = digest.felt_s or 0.0
        self._hits: dict[bytes, _Hit] = {}
        self._turns: dict[bytes, _Hit] = {}
        self._reads: dict[bytes, tuple[int, bytes]] = {}
        self._seen = 0
        self.found: set[int] = set()
        """Places of the lines to leave out."""

    def look_at(self, lines: Sequence[HitLine]) -> set[int]:
        """Return the places of the lines to leave out; what they tell is in the digest."""
        for place, (start, stop, candidates) in enumerate(lines):
            look = _LOOKS.get(candidates[0])
            if look is not None and len(candidates) == 1:
                look(self, place, start, stop)
        return self.found

    def sent(self, place: int, start: int, stop: int) -> None:
        """Note a hit. Of two calm ones of a conversation the earlier is not needed: no later turn is explained by it."""
        match = _SENT.match(self._block, start, stop)
        if match is None:
            return
        turn, conversation = match.groups()
        before = self._hits.get(conversation)
        if before is not None and before.calm(self._felt_s):
            if before.before is not None and before.before.calm(self._felt_s):
                self._leave_out(before.before)
            before.before = None
        self._hits[conversation] = self._turns[turn] = _Hit(turn, place, before=before)

    def _leave_out(self, hit: _Hit) -> None:
        self._seen += 1
        if self._seen <= _KEPT or hit.done is None or hit.stored is None:
            return
        self.found.update((hit.sent, hit.done, hit.stored))
        self._digest.kinds.update(("handle_sent", "prefill_done", "handle_stored"))
        name = external_id(hit.turn.decode("utf-8", "replace"), suffixed=False)
        self._digest.add_turn(name, SENT, length_class(hit.blocks), hit.taken_s, first=False)

    def done(self, place: int, start: int, stop: int) -> None:
        """Note how long a hit's prefill call took."""
        match = _DONE.match(self._block, start, stop)
        hit = self._turns.pop(match[1], None) if match is not None else None
        if match is not None and hit is not None:
            hit.done, hit.taken_s = place, int(match[2]) / 1000

    def stored(self, place: int, start: int, stop: int) -> None:
        """Note that a hit left a handle of its own."""
        match = _STORED.match(self._block, start, stop)
        hit = self._hits.get(match[1]) if match is not None else None
        if match is not None and hit is not None and hit.turn in match[2]:
            hit.stored, hit.blocks = place, int(match[3])

    def missed(self, _place: int, start: int, stop: int) -> None:
        """Keep everything that explains a miss: the turns around it."""
        match = _OTHER.search(self._block, start, stop)
        if match is not None:
            self._hits.pop(match[1], None)

    def read(self, place: int, start: int, stop: int) -> None:
        """Leave a read out that ended in the second in which it began: stamps of whole seconds tell no more of it."""
        match = _READ.match(self._block, start, stop)
        if match is None:
            return
        second, request = match.groups()
        begun = self._reads.pop(request, None)
        if begun is None:
            self._reads[request] = (place, second)
        elif begun[1] == second:
            self.found.update((begun[0], place))
            self._digest.kinds.update(("read_started", "read_finished"))


_LOOKS: Final = {
    **dict.fromkeys(_SENDS, Uneventful.sent),
    **dict.fromkeys(_DONES, Uneventful.done),
    **dict.fromkeys(_STORES, Uneventful.stored),
    **dict.fromkeys(_MISSES, Uneventful.missed),
    **dict.fromkeys(_STARTS | _ENDS, Uneventful.read),
}
