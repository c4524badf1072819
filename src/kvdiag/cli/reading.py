"""How verbs read logs: with a progress bar where somebody watches."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvdiag.diagnosis.options import Options
from kvdiag.diagnosis.pipeline import classify

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvdiag.diagnosis.reading import Progress
    from kvdiag.diagnosis.report import Report


@contextmanager
def watched() -> Iterator[Progress | None]:
    """Yield what to call as reading advances: a progress bar on a terminal, else None."""
    if not sys.stderr.isatty():
        yield None
        return
    from kvdiag.diagnosis.progress import progress_bar  # noqa: PLC0415 - only a terminal needs rich

    with progress_bar() as progress:
        yield progress


def classified(paths: Sequence[str], options: Options) -> Report:
    """Return the report on these paths; when interrupted, on what had been read by then."""
    with watched() as progress:
        return classify(paths, options, progress)


def with_turns(paths: Sequence[str]) -> Report:
    """Return the whole report with its turns; an interruption ends the command, since half a log would mislead."""
    report = classified(paths, Options(turns=True))
    if report.interrupted:
        raise KeyboardInterrupt
    return report
