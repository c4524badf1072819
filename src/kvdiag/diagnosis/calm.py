"""Lines on which nothing happened: most of them need not be taken apart.

Periodic lines come every 10 s for weeks, DEBUG lines with every request. A few of them tell the usual load and pace,
and who writes; the rest is counted and left unread, except for the periodic line right before an eventful one, so
that lines which look consecutive are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kvdiag.diagnosis.patterns import PATTERNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kvdiag.diagnosis.digest import Digest

    HitLine = tuple[int, int, list[int]]
    """Start and stop of a line in its block, and the patterns that may fit it."""
    Calm = Callable[[bytes, int, int], object]
    """Tells of a line, by block, start and stop, whether nothing happened on it."""

_KEPT: Final = 64
_STRIDE: Final = 16

# Nobody waits to speak of; and reads that succeed within a tenth of a second.
_CALM_LOAD: Final = re.compile(rb"Waiting: [0-3] reqs")
_CALM_TRANSFERS: Final = re.compile(
    rb"successful transfers=[1-9]\d*, Avg xfer time \(ms\)=\d{1,2}(?:\.\d+)?, P90 xfer time \(ms\)=[\d.]+, "
    rb"Avg post time \(ms\)=\d{1,2}(?:\.\d+)?, P90 post time \(ms\)=[\d.]+, Avg MB per transfer=[\d.]+, "
    rb"Throughput \(MB/s\)=[\d.]+, Avg number of descriptors=[\d.]+"
    rb"(?:, Num failed transfers=0, Num KV expired reqs=0(?:, Num notifs after expiry=0)?)?(?![,.\d])"
)
# The router sent no handle; or a whole one that offers more than prefill holds itself.
_NO_HANDLE: Final = re.compile(rb"'remote_block_ids': None|kv_transfer_params=None")
_LOCAL: Final = re.compile(rb"num_computed_tokens=(\d{1,9}),")
_REMOTE: Final = re.compile(rb"'remote_num_tokens': (\d{1,9})[,}]")
_HANDLE: Final = tuple(
    f"'{key}': ".encode()
    for key in ("remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port")
)
_ANSWERED: Final = re.compile(rb'"HTTP/[\d.]+ 2\d\d')


def _calm_match(block: bytes, start: int, stop: int) -> bool:
    line = block[start:stop]
    if b"'do_remote_decode': True" not in line or _NO_HANDLE.search(line):
        return True
    local, remote = _LOCAL.search(line), _REMOTE.search(line)
    whole = all(key in line for key in _HANDLE) and b": None" not in line
    return whole and local is not None and remote is not None and int(local[1]) < int(remote[1])


def _always(_block: bytes, _start: int, _stop: int) -> bool:
    return True


def _of_kinds(kinds: dict[str, Calm]) -> dict[int, Calm]:
    return {number: kinds[pattern.kind] for number, pattern in enumerate(PATTERNS) if pattern.kind in kinds}


_PERIODIC: Final = _of_kinds({"load": _CALM_LOAD.search, "transfers": _CALM_TRANSFERS.search})
_FREQUENT: Final = _of_kinds(
    {
        "matched": _calm_match,
        "allocated": _always,
        "retained": _always,
        "lookup_hit": _always,
        "upstream_call": _ANSWERED.search,
    }
)
"""Lines that come with every request; what is on them is noted once, not counted."""
_KINDS: Final = [pattern.kind for pattern in PATTERNS]


class Skimmer:
    """Leaves calm lines of one block out; the digest counts them."""

    def __init__(self, block: bytes, digest: Digest) -> None:
        self._block = block
        self._kinds = digest.kinds
        self._seen = dict.fromkeys([*_PERIODIC, *_FREQUENT], 0)
        self._left_out: dict[int, HitLine] = {}

    def worth_reading(self, lines: Iterable[HitLine]) -> Iterator[HitLine]:
        """Yield the lines to take apart; one that was left out at first comes after those that follow it."""
        for line in lines:
            kind = line[2][0]
            if len(line[2]) > 1 or kind not in self._seen:
                yield line
            elif kind in _FREQUENT:
                if not self._skip(kind, line):
                    yield line
            elif not self._skip_periodic(kind, line):
                left_out = self._left_out.pop(kind, None)
                if left_out is not None:
                    self._kinds[_KINDS[kind]] -= 1
                    yield left_out
                yield line

    def _skip(self, kind: int, line: HitLine) -> bool:
        self._seen[kind] += 1
        if self._seen[kind] <= _KEPT or not _FREQUENT[kind](self._block, line[0], line[1]):
            return False
        self._kinds[_KINDS[kind]] += 1
        return True

    def _skip_periodic(self, kind: int, line: HitLine) -> bool:
        if not _PERIODIC[kind](self._block, line[0], line[1]):
            return False
        self._seen[kind] += 1
        if self._seen[kind] <= _KEPT or self._seen[kind] % _STRIDE == 0:
            self._left_out.pop(kind, None)
            return False
        self._left_out[kind] = line
        self._kinds[_KINDS[kind]] += 1
        return True
