"""`python -m benchmarks.soak.counted FILE VERB...`: kvdiag, which writes its number of live objects to FILE on SIGUSR2."""

from __future__ import annotations

import gc
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvdiag.cli import main

if TYPE_CHECKING:
    from types import FrameType


def count_to(path: Path) -> None:
    """Write a whole number, so that a reader never sees half of one."""
    gc.collect()
    partial = path.with_suffix(".partial")
    partial.write_text(str(len(gc.get_objects())))
    partial.rename(path)


def _install(path: Path) -> None:
    def count(_number: int, _frame: FrameType | None) -> None:
        count_to(path)

    signal.signal(signal.SIGUSR2, count)


if __name__ == "__main__":
    _install(Path(sys.argv.pop(1)))
    main()
