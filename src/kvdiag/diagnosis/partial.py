"""Lines that a container runtime cut into parts: CRI's `P` and `F`, docker's records without a final newline."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

_CRI_START: Final = re.compile(rb"\d{4}-\d\d-\d\dT\S+ std(?:out|err) [FP] ")
_CRI_PARTIAL: Final = re.compile(rb"^\S+ std(?:out|err) P ", re.MULTILINE)
_CRI: Final = re.compile(rb"^(\S+) (stdout|stderr) ([PF])(?: (.*))?$", re.DOTALL)
_DOCKER_PARTIAL: Final = re.compile(rb'^\{"log": ?"(?:[^"\\\n]|\\[^n\n]|\\n(?!"))*", ?"stream"', re.MULTILINE)
_DOCKER_WHOLE: Final = (b'\\n","stream":"', b'\\n", "stream": "')
_DOCKER: Final = re.compile(rb'^(\{"log": ?")((?:[^"\\]|\\.)*)(", ?"stream": ?"(\w+)".*)$', re.DOTALL)


_JOURNAL_BYTES: Final = re.compile(rb'"MESSAGE" ?: ?\[(\d{1,3}(?:, ?\d{1,3})*)\]')


def spell_out(block: bytes) -> bytes:
    """Return `block` with journald's messages as text: `-o json` writes one with control characters as its bytes."""
    return _JOURNAL_BYTES.sub(_spelled, block) if block.startswith(b"{") and b'"MESSAGE"' in block else block


def _spelled(match: re.Match[bytes]) -> bytes:
    numbers = [int(number) for number in match[1].split(b",")]
    if not all(number < 256 for number in numbers):
        return match[0]
    return b'"MESSAGE":' + msgspec.json.encode(bytes(numbers).decode("utf-8", "replace"))


def rejoin(block: bytes) -> tuple[bytes, list[int] | None]:
    """Return `block` with cut lines made whole, and the line number of each line (None where nothing was cut).

    A joined line carries the number of its first part.
    """
    if _CRI_START.match(block) and _CRI_PARTIAL.search(block):
        return _join(block, _cri_part)
    if block.startswith(b'{"log"') and not _all_whole(block) and _DOCKER_PARTIAL.search(block):
        return _join(block, _docker_part)
    return block, None


def _all_whole(block: bytes) -> bool:
    """Tell whether every record of Docker's ends its line, which is quick to count."""
    return any(block.count(end) == block.count(b"\n") for end in _DOCKER_WHOLE)


@dataclass(slots=True)
class _Part:
    stream: bytes
    before: bytes
    texts: list[bytes]
    after: bytes
    more: bool
    """Whether the rest is still to come."""

    def whole(self) -> bytes:
        return self.before + b"".join(self.texts) + self.after


def _cri_part(line: bytes) -> _Part | None:
    match = _CRI.match(line)
    if match is None:
        return None
    time, stream, flag, text = match.groups()
    return _Part(stream, time + b" " + stream + b" F ", [text or b""], b"", flag == b"P")


def _docker_part(line: bytes) -> _Part | None:
    match = _DOCKER.match(line)
    if match is None:
        return None
    before, text, after, stream = match.groups()
    return _Part(stream, before, [text], after, not text.endswith(b"\\n"))


def _join(block: bytes, part_of: Callable[[bytes], _Part | None]) -> tuple[bytes, list[int]]:
    joined: list[bytes | _Part] = []
    numbers: list[int] = []
    pending: dict[bytes, _Part] = {}
    for number, line in enumerate(block.removesuffix(b"\n").split(b"\n"), start=1):
        part = part_of(line.rstrip(b"\r"))
        if part is not None and part.stream in pending:
            pending[part.stream].texts += part.texts
        else:
            joined.append(line if part is None else part)
            numbers.append(number)
        if part is None:
            continue
        if part.more:
            pending.setdefault(part.stream, part)
        else:
            pending.pop(part.stream, None)
    return b"\n".join(line if isinstance(line, bytes) else line.whole() for line in joined) + b"\n", numbers
