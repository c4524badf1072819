"""Periodic lines on which nothing happened: most of them need not be taken apart.

They come every 10 s for weeks. A few of them tell the usual load and pace; the rest is counted and left unread,
except for the one right before an eventful line, so that lines which look consecutive are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kvdiag.diagnosis.patterns import PATTERNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    HitLine = tuple[int, int, list[int]]
    """Start and stop of a line in its block, and the patterns that may fit it."""

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
_CALM: Final = {
    next(number for number, pattern in enumerate(PATTERNS) if pattern.kind == kind): calm
    for kind, calm in (("load", _CALM_LOAD), ("transfers", _CALM_TRANSFERS))
}


class Skimmer:
    """Leaves calm lines of one block out; `skipped` counts them."""

    def __init__(self, block: bytes) -> None:
        self.skipped = 0
        self._block = block
        self._seen = dict.fromkeys(_CALM, 0)
        self._left_out: dict[int, HitLine] = {}

    def worth_reading(self, lines: Iterable[HitLine]) -> Iterator[HitLine]:
        """Yield the lines to take apart, in their order."""
        for line in lines:
            kind = line[2][0]
            if len(line[2]) == 1 and kind in _CALM:
                if self._skip(kind, line):
                    continue
                left_out = self._left_out.pop(kind, None)
                if left_out is not None:
                    self.skipped -= 1
                    yield left_out
            yield line

    def _skip(self, kind: int, line: HitLine) -> bool:
        if _CALM[kind].search(self._block, line[0], line[1]) is None:
            return False
        self._seen[kind] += 1
        if self._seen[kind] <= _KEPT or self._seen[kind] % _STRIDE == 0:
            self._left_out.pop(kind, None)
            return False
        self._left_out[kind] = line
        self.skipped += 1
        return True
