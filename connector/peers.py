"""What this prefill knows of the engines it reads from: which handles are used up, which engines are out of reach."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdiag.connector.handle import Handle

MEMORY: Final = 65_536
"""Handles and engines remembered, the oldest forgotten first."""
RETRY_AFTER_S: Final = 30.0
"""How long an engine that could not be reached is left alone; one that was replaced never comes back."""
STRIKES: Final = 2
"""Failed transfers in a row after which an engine counts as out of reach: one may be an accident."""
_FINAL: Final = frozenset({"restarted", "incompatible"})
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Peers:
    """Bounded memory, one per scheduler."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._used: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._reached: OrderedDict[str, None] = OrderedDict()
        self._unreachable: OrderedDict[str, tuple[float, str | None]] = OrderedDict()
        self._strikes: OrderedDict[str, int] = OrderedDict()

    def use(self, handle: Handle) -> None:
        """Remember that a handle was read or released; it is good for one time only."""
        _remember(self._used, (handle.engine_id, handle.request_id), None)

    def used(self, handle: Handle) -> bool:
        """Return whether this prefill has used the handle before."""
        return (handle.engine_id, handle.request_id) in self._used

    def reach(self, engine_id: str) -> None:
        """Remember a handshake that succeeded."""
        self._unreachable.pop(engine_id, None)
        _remember(self._reached, engine_id, None)

    def reached(self, engine_id: str) -> bool:
        """Return whether the last handshake with this engine succeeded."""
        return engine_id in self._reached

    def avoid(self, engine_id: str, detail: str | None) -> None:
        """Remember that an engine could not be reached: for good where it was replaced, else for a while."""
        until = math.inf if detail in _FINAL else self._clock() + RETRY_AFTER_S
        self._reached.pop(engine_id, None)
        _remember(self._unreachable, engine_id, (until, detail))

    def strike(self, engine_id: str) -> None:
        """Count a transfer that failed."""
        strikes = self._strikes.get(engine_id, 0) + 1
        _remember(self._strikes, engine_id, strikes)
        if strikes >= STRIKES:
            self.avoid(engine_id, None)

    def forgive(self, engine_id: str) -> None:
        """Forget failed transfers: one has arrived."""
        self._strikes.pop(engine_id, None)

    def avoided(self, engine_id: str) -> tuple[bool, str | None]:
        """Return whether to leave this engine alone now, and the detail of peer_unreachable that says why."""
        until, detail = self._unreachable.get(engine_id, (-math.inf, None))
        return self._clock() < until, detail


def _remember(memory: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > MEMORY:
        memory.popitem(last=False)
