"""How often, and why, a call is made again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvdiag.router.faults import EngineTimeoutError, EngineUnreachableError, NoEngineError

if TYPE_CHECKING:
    from kvdiag.events import Role
    from kvdiag.router.faults import EngineError
    from kvdiag.router.metrics import Retry
    from kvdiag.router.placement import Engine, Pool
    from kvdiag.router.state import Services, TurnState

ATTEMPTS: Final = 3
"""Calls of one leg, the first included."""
_REASONS: Final[dict[Role, tuple[Retry, Retry, Retry]]] = {
    "prefill": ("prefill_unreachable", "prefill_timeout", "prefill_error"),
    "decode": ("decode_unreachable", "decode_timeout", "decode_error"),
}


def count_retry(services: Services, state: TurnState, role: Role, attempt: int, error: EngineError) -> None:
    """Count a failed call that is made again; after the last attempt, or once the client has bytes, give up.

    Raises:
        EngineError: the failure, when there is nothing left to try.

    """
    services.metrics.upstream_error(role)
    if attempt + 1 == ATTEMPTS or state.connection.head_sent:
        raise error
    services.metrics.retry(_reason(role, error))
    state.retries += 1


def _reason(role: Role, error: EngineError) -> Retry:
    unreachable, timeout, other = _REASONS[role]
    if isinstance(error, EngineUnreachableError):
        return unreachable
    return timeout if isinstance(error, EngineTimeoutError) else other


def pick(pool: Pool, avoid: set[str], prefer: str | None = None) -> Engine:
    """Return an engine that has not failed this turn, else one that has: it may still be the best there is."""
    try:
        return pool.pick(prefer=prefer, avoid=avoid)
    except NoEngineError:
        if not avoid:
            raise
        return pool.pick(prefer=prefer)
