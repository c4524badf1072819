"""Whether a prefill engine has read blocks back, by its own counters: whoever reads counts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from kvdiag.doctor.site import look_at

if TYPE_CHECKING:
    from kvdiag.doctor.samples import Samples
    from kvdiag.doctor.site import Service

SETTLE_S: Final = 15.0
"""How long a service may take to count what it did."""
POLL_S: Final = 0.3
_SCRAPE_S: Final = 10.0
_COUNTERS: Final[tuple[tuple[str, dict[str, str]], ...]] = (
    ("kvdiag_transfer_bytes_total", {"direction": "decode_to_prefill"}),
    ("vllm:nixl_bytes_transferred_sum", {}),
)


def scraped(service: Service) -> Samples | None:
    """Return the service's metrics as they are now."""
    return look_at(service.role, service.server, _SCRAPE_S).samples


def counts(samples: Samples | None) -> bool:
    """Return whether an engine with these metrics would count a read-back."""
    return samples is not None and any(samples.total(name, **labels) is not None for name, labels in _COUNTERS)


def rose(engine: Service, before: Samples) -> bool:
    """Wait until the engine has counted a read-back since `before`; return whether it did."""
    until = time.monotonic() + SETTLE_S
    while True:
        now = scraped(engine)
        if now is not None and _more(now, before):
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(POLL_S)


def _more(now: Samples, before: Samples) -> bool:
    return any((now.total(name, **labels) or 0) > (before.total(name, **labels) or 0) for name, labels in _COUNTERS)
