"""Logs that still grow: read on, and report anew whenever something was found."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvdiag.diagnosis.assemble import assemble
from kvdiag.diagnosis.casebook import Casebook
from kvdiag.diagnosis.pipeline import forced_role, read
from kvdiag.diagnosis.reduce import add_block
from kvdiag.diagnosis.scan import scan
from kvdiag.diagnosis.sources import find_sources, read_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvdiag.diagnosis.options import Options
    from kvdiag.diagnosis.report import Report

_PAUSE_S: Final = 1.0
_STEP: Final = 8 << 20


def follow(
    paths: Sequence[str],
    options: Options,
    *,
    steadily: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[Report]:
    """Yield the report of what is there, then a new one each time that more was found; Ctrl-C ends it.

    `steadily` yields after each pause instead, whether there was more or not.

    :raises InputError: where not one of the inputs can be read.
    """
    book = Casebook(forced_role=forced_role(options))
    ends = {path: _size(path) for source in find_sources(paths) for path in source.paths}
    read(book, paths, options)
    shown = None
    while True:
        report = assemble(book, options)
        if steadily or report.findings != shown:
            shown = report.findings
            yield report
        try:
            while not _grown(book, paths, ends, options.felt_s):
                pause(_PAUSE_S)
                if steadily:
                    yield report
        except KeyboardInterrupt:
            return


def _grown(book: Casebook, paths: Sequence[str], ends: dict[str, int], felt_s: float | None) -> bool:
    """Read what was appended; tell whether there was anything."""
    found = False
    for source in find_sources(paths):
        path = source.paths[-1]
        while block := _appended(path, ends):
            notes = book.file(path)
            notes.problem = notes.problem if notes.lines else None  # what could not be opened before has come
            add_block(book, source.name, path, scan(block, felt_s))
            found = True
    return found


def _appended(path: str, ends: dict[str, int]) -> bytes:
    """Return the next whole lines of a file; one that shrank was started anew."""
    end, size = ends.get(path, 0), _size(path)
    if size < end:
        end = 0
    try:
        block = read_range(path, end, min(size, end + _STEP)) if size > end else b""
    except OSError:
        return b""
    block = block[: block.rfind(b"\n") + 1]
    ends[path] = end + len(block)
    return block


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0
