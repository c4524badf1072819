"""Every block of every input, scanned: in this process where there is little, on every core where there is much."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kvdiag.diagnosis.scan import scan
from kvdiag.diagnosis.sources import Source, is_plain, read_blocks, read_range
from kvdiag.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvdiag.diagnosis.facts import Scanned
    from kvdiag.diagnosis.options import Options

    Progress = Callable[[int, int], None]
    """Called with the bytes read so far and the bytes of all plain files together."""

_RANGE: Final = 6 << 20
# Starting processes takes as long as scanning this much.
_WORTH_A_POOL: Final = 128 << 20


class Piece(NamedTuple):
    """One scanned block, or why its file could not be read, or no further."""

    source: Source
    path: str
    scanned: Scanned | None
    problem: str | None = None


def pieces(sources: Sequence[Source], options: Options, progress: Progress | None = None) -> Iterator[Piece]:
    """Yield every block of the sources in their order, scanned."""
    total = sum(_size(path) for source in sources for path in source.paths)
    workers = options.jobs or len(os.sched_getaffinity(0))
    with ExitStack() as stack:
        pool = stack.enter_context(_pool(workers)) if workers > 1 and total >= _WORTH_A_POOL else None
        if pool is not None:
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        done = 0
        for source, path, size, result in _in_order(_submitted(sources, pool, options.felt_s), workers):
            done += size
            yield _piece(source, path, result)
            if progress is not None:
                progress(done, total)


def _submitted(
    sources: Sequence[Source], pool: ProcessPoolExecutor | None, felt_s: float | None
) -> Iterator[tuple[Source, str, int, Callable[[], Scanned]]]:
    for source in sources:
        for path in source.paths:
            yield from ((source, path, size, result) for size, result in _of_file(path, pool, felt_s))


def _of_file(
    path: str, pool: ProcessPoolExecutor | None, felt_s: float | None
) -> Iterator[tuple[int, Callable[[], Scanned]]]:
    """Yield the blocks of one file as calls that return them scanned, or raise `InputError`."""
    try:
        size = _size(path)
        if pool is None or not size or not is_plain(path):
            empty = True
            for block in read_blocks(path):
                empty = False
                yield len(block), _call(pool, scan, block, felt_s)
            if empty:  # it is told of all the same: whoever named it should know
                yield 0, _call(None, scan, b"", felt_s)
            return
        for start in range(0, size, _RANGE):
            stop = min(start + _RANGE, size)
            yield stop - start, _call(pool, _scan_range, path, start, stop, felt_s)
    except InputError as error:
        yield 0, _raiser(error)


def _call(
    pool: ProcessPoolExecutor | None, function: Callable[..., Scanned], *arguments: object
) -> Callable[[], Scanned]:
    if pool is None:
        return lambda: function(*arguments)
    future: Future[Scanned] = pool.submit(function, *arguments)
    return future.result


def _raiser(error: InputError) -> Callable[[], Scanned]:
    def fail() -> Scanned:
        raise error

    return fail


def _scan_range(path: str, start: int, stop: int, felt_s: float | None) -> Scanned:
    try:
        return scan(read_range(path, start, stop), felt_s)
    except OSError as error:
        raise InputError(f"{path}: {(error.strerror or str(error)).lower()}") from error


def _in_order(
    submitted: Iterator[tuple[Source, str, int, Callable[[], Scanned]]], workers: int
) -> Iterator[tuple[Source, str, int, Callable[[], Scanned]]]:
    """Keep just enough blocks under way that no core waits, so that memory stays flat."""
    waiting: deque[tuple[Source, str, int, Callable[[], Scanned]]] = deque()
    for item in submitted:
        waiting.append(item)
        if len(waiting) > 2 * workers:
            yield waiting.popleft()
    yield from waiting


def _piece(source: Source, path: str, result: Callable[[], Scanned]) -> Piece:
    try:
        return Piece(source, path, result())
    except InputError as error:
        return Piece(source, path, None, str(error).removeprefix(f"{path}: "))


def _pool(workers: int) -> ProcessPoolExecutor:
    """Return the pool; forked, which costs no imports, unless threads run that a fork would cut off."""
    method = "fork" if threading.active_count() == 1 else "spawn"
    return ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context(method),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0
