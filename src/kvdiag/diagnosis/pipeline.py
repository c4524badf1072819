"""The one entry point: paths in, report out."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import PurePath
from typing import TYPE_CHECKING

from kvdiag.diagnosis.assemble import assemble
from kvdiag.diagnosis.casebook import MAX_TURNS, Casebook
from kvdiag.diagnosis.options import Options
from kvdiag.diagnosis.reading import pieces
from kvdiag.diagnosis.reduce import add_block
from kvdiag.diagnosis.sources import find_sources
from kvdiag.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvdiag.diagnosis.options import LogRole
    from kvdiag.diagnosis.reading import Progress
    from kvdiag.diagnosis.report import Report

_DEFAULTS = Options()


def classify(paths: Sequence[str], options: Options = _DEFAULTS, progress: Progress | None = None) -> Report:
    """Return what the logs under `paths` (files, directories, `-` for stdin) say about their turns.

    An interruption (Ctrl-C) ends the reading; the report then tells what is known by then.

    :raises InputError: where not one of the inputs can be read.
    """
    # Rows are worth memory; without them a turn is kept only until other logs have told of it as well.
    book = Casebook(forced_role=forced_role(options), most_turns=MAX_TURNS if options.turns else MAX_TURNS // 2)
    interrupted = False
    try:
        read(book, paths, options, progress)
    except KeyboardInterrupt:
        interrupted = True
    report = assemble(book, options)
    report.interrupted = interrupted
    return report


def read(book: Casebook, paths: Sequence[str], options: Options, progress: Progress | None = None) -> None:
    """Read everything under `paths` into the casebook.

    :raises InputError: where not one of the inputs can be read.
    """
    sources = find_sources(list(map(str, paths)))
    if not sources:
        raise InputError(f"{', '.join(map(str, paths))}: holds no file; name log files or a directory of logs")
    for piece in pieces(sources, options, progress):
        notes = book.file(piece.path)
        notes.problem = piece.problem or notes.problem
        if piece.scanned is not None:
            add_block(book, piece.source.name, piece.path, piece.scanned)
    unread = [f"{notes.path}: {notes.problem}" for notes in book.unread if not notes.lines]
    if book.files and len(unread) == len(book.files):
        raise InputError("; ".join(unread[:5]))


def forced_role(options: Options) -> Callable[[str], LogRole | None]:
    """Return the role that the options force on a log, by its name."""

    def role_of(name: str) -> LogRole | None:
        for role, pattern in options.roles:
            if fnmatch(name, pattern) or fnmatch(PurePath(name).name, pattern):
                return role
        return None

    return role_of
