"""The one entry point: paths in, report out."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import PurePath
from typing import TYPE_CHECKING

from kvdiag.diagnosis.assemble import assemble
from kvdiag.diagnosis.casebook import Casebook
from kvdiag.diagnosis.options import Options
from kvdiag.diagnosis.reduce import add_block
from kvdiag.diagnosis.scan import scan
from kvdiag.diagnosis.sources import find_sources, read_blocks
from kvdiag.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvdiag.diagnosis.engines import LogRole
    from kvdiag.diagnosis.report import Report

_DEFAULTS = Options()


def classify(paths: Sequence[str], options: Options = _DEFAULTS) -> Report:
    """Return what the logs under `paths` (files, directories, `-` for stdin) say about their turns.

    :raises InputError: where not one of the inputs can be read.
    """
    book = Casebook(forced_role=_forced(options))
    for source in find_sources(list(map(str, paths))):
        for path in source.paths:
            _read(book, source.name, path)
    return assemble(book, options)


def _read(book: Casebook, source: str, path: str) -> None:
    notes = book.file(path)
    try:
        for block in read_blocks(path):
            add_block(book, source, path, scan(block))
    except InputError as error:
        notes.problem = str(error)


def _forced(options: Options) -> Callable[[str], LogRole | None]:
    def role_of(name: str) -> LogRole | None:
        for role, pattern in options.roles:
            if fnmatch(name, pattern) or fnmatch(PurePath(name).name, pattern):
                return role
        return None

    return role_of
