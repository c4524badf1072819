"""Engines kept running between scenarios, the least recently used stopped when there are too many for the machine."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Self

from benchmarks.faults.engines import ENGINES

from kvdiag.localstack.agent import complete
from kvdiag.localstack.engine import engine_service
from kvdiag.localstack.model import ensure_model
from kvdiag.localstack.stack import START_TIMEOUT_S, model_cache

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvdiag.localstack import Service

LIMIT: Final = 4
"""Engines at a time; each takes about 2.2 GiB."""


class Fleet:
    """Context manager: `engines` starts what is missing; nothing is left behind."""

    def __init__(self, folder: Path, progress: Callable[[str], None] = lambda _: None) -> None:
        self._folder = folder
        self._progress = progress
        self._running: OrderedDict[str, Service] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._running:
            self._running.popitem()[1].stop()

    def engines(self, *names: str) -> list[Service]:
        """Return these engines, healthy and with their kernels compiled."""
        missing = [name for name in names if name not in self._running]
        for name in names:
            if name in self._running:
                self._running.move_to_end(name)
        while len(self._running) + len(missing) > LIMIT:
            self._running.popitem(last=False)[1].stop()
        for name in missing:
            self._running[name] = self._start(name)
        for name in missing:
            self._progress(f"starting {name}")
            self._running[name].wait_healthy(START_TIMEOUT_S, self._progress)
            warm_up(self._running[name])
        return [self._running[name] for name in names]

    def stop(self, *names: str) -> None:
        """Stop these engines, so that the next scenario gets fresh ones."""
        for name in names:
            if name in self._running:
                self._running.pop(name).stop()

    def _start(self, name: str) -> Service:
        engine = ENGINES[name]
        service = engine_service(
            engine.role, engine.role, ensure_model(model_cache()), self._folder / name, engine.options
        )
        service.start()
        return service


def warm_up(engine: Service) -> None:
    """Let the engine compile its kernels on one plain request."""
    complete(engine.port, [{"role": "user", "content": "warm up on a prompt that spans some blocks; " * 20}])
