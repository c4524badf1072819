"""What an operator may choose about dashboards and rules."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from kvdiag.catalogue import TTFT_BUCKETS
from kvdiag.errors import InputError


@dataclass(frozen=True, slots=True)
class Settings:
    """The objective of later turns and where Grafana is."""

    ttft_objective: float = 2.0
    """Seconds; a bucket bound of `kvdiag_turn_ttft_seconds`, so that the share within it is counted and not estimated."""
    ttft_target: float = 0.95
    """Share of later turns that must start within the objective."""
    grafana_url: str = "http://localhost:3000"
    """Base of the links in alerts; a slash at its end is dropped."""

    def __post_init__(self) -> None:
        if self.ttft_objective not in TTFT_BUCKETS:
            bounds = ", ".join(f"{bound:g}" for bound in TTFT_BUCKETS)
            raise InputError(f"TTFT objective {self.ttft_objective:g} s is no bucket bound; choose from {bounds}")
        # 14.4 times the error budget must stay below 1, else the fast burn alert could never fire.
        if not 0.94 <= self.ttft_target < 1:
            raise InputError(f"TTFT target {self.ttft_target:g} cannot be alerted on; choose from 0.94 up to below 1")
        if urlsplit(self.grafana_url).scheme not in {"http", "https"}:
            raise InputError(f"Grafana URL {self.grafana_url!r} cannot be used; write it like http://HOST:3000")
        object.__setattr__(self, "grafana_url", self.grafana_url.rstrip("/"))

    @property
    def le(self) -> str:
        """The objective as prometheus_client spells it in `le`."""
        return str(float(self.ttft_objective))
