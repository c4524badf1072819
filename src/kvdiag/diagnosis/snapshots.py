"""`/metrics` snapshots: what the counters of one engine or router tell, between two of them or since its start."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvdiag.diagnosis.options import LogRole
    from kvdiag.diagnosis.report import Evidence

_MAX_SERIES: Final = 20_000
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_GAUGES: Final = ("num_requests_", "_cache_usage_perc", "_config_info", "_info", "process_start_time_seconds")
# Prefill ends a request with its first token.
_PREFILL_TOKENS: Final = 1.5

_ASKED_FOR: Final = "vllm:request_params_max_tokens_bucket"
"""With `le="1.0"`: requests that ask for one token, as a router asks prefill."""

Key = tuple[str, tuple[tuple[str, str], ...]]


class Value(NamedTuple):
    """One sample and the line that holds it."""

    value: float
    evidence: Evidence


@dataclass(slots=True)
class Snapshot:
    """The samples of one scrape, by name and labels."""

    values: dict[Key, Value] = field(default_factory=dict)
    role: LogRole | None = None
    """Whose it is, where somebody said so."""

    def counters(self) -> dict[Key, float]:
        """Return the samples that only ever rise, with the process that they belong to in `_created`."""
        return {key: v.value for key, v in self.values.items() if not any(mark in key[0] for mark in _GAUGES)}

    def precedes(self, later: Snapshot) -> bool:
        """Tell whether `later` can be a later scrape of the same process."""
        ours, theirs = self.counters(), later.counters()
        created = [key for key in ours if key[0].endswith("_created") or key[0] == "process_start_time_seconds"]
        same = all(theirs.get(key) == ours[key] for key in created)
        return same and ours.keys() <= theirs.keys() and all(theirs[key] >= value for key, value in ours.items())


@dataclass(frozen=True, slots=True)
class Scrapes:
    """One process: its last snapshot and, where there is one, an earlier one to compare with."""

    last: Snapshot
    first: Snapshot | None = None

    def rise(self, name: str, **labels: str) -> float:
        """Return by how much a counter rose, since the process started where there is no earlier snapshot."""
        return sum(v.value - self._before(key) for key, v in self._matching(name, labels))

    def level(self, name: str) -> float | None:
        """Return the last value of a gauge, summed over its series, None where it is missing."""
        found = [v.value for _, v in self._matching(name, {})]
        return sum(found) if found else None

    def lines(self, name: str, **labels: str) -> list[Evidence]:
        """Return the lines of a counter that rose: now, and before."""
        risen = [(key, v) for key, v in self._matching(name, labels) if v.value > self._before(key)]
        before = [self.first.values[key].evidence for key, _ in risen if self.first and key in self.first.values]
        return [v.evidence for _, v in risen] + before

    def series(self, name: str) -> Iterator[tuple[dict[str, str], float, list[Evidence]]]:
        """Yield labels, rise and lines of every series of a counter that rose."""
        for key, v in self._matching(name, {}):
            rise = v.value - self._before(key)
            if rise > 0:
                yield dict(key[1]), rise, [v.evidence]

    @property
    def role(self) -> LogRole | None:
        """Return whose metrics these are: by what was said, by the connector, by what requests ask for and are given."""
        if self.last.role is not None:
            return self.last.role
        names = {name for name, _ in self.last.values}
        if any(name.startswith("kvdiag_router_") for name in names):
            return "router"
        if (named := self._configured_role()) is not None:
            return named
        requests = Scrapes(self.last).rise("vllm:request_success_total")
        if not requests:
            return None
        # Others may ask a prefill as well; that half of all requests want one token comes of a router only.
        if self._want_one_token() * 2 >= requests:
            return "prefill"
        generated = Scrapes(self.last).rise("vllm:generation_tokens_total")
        return "prefill" if generated / requests <= _PREFILL_TOKENS else "decode"

    def _configured_role(self) -> LogRole | None:
        """Return the role that the connector was given."""
        roles = {dict(labels).get("role") for name, labels in self.last.values if name == "kvdiag_connector_info"}
        return "prefill" if roles == {"prefill"} else "decode" if roles == {"decode"} else None

    def _want_one_token(self) -> float:
        return sum(v.value for key, v in self.last.values.items() if key[0] == _ASKED_FOR)

    def _matching(self, name: str, labels: dict[str, str]) -> Iterator[tuple[Key, Value]]:
        for key, v in self.last.values.items():
            if key[0] == name and labels.items() <= dict(key[1]).items():
                yield key, v

    def _before(self, key: Key) -> float:
        before = self.first.values.get(key) if self.first is not None else None
        return before.value if before is not None else 0.0


def read_sample(
    snapshots: list[Snapshot], sample: tuple[str, str, float], evidence: Evidence, role: LogRole | None = None
) -> None:
    """Add one line of the exposition format (name, labels, value) to the snapshots of a file.

    A series seen before opens the next snapshot. `role` is whose metrics somebody said that they are.
    """
    name, labels, value = sample
    key = (name, tuple(sorted(_LABEL.findall(labels))))
    if name.endswith("_bucket") and (name != _ASKED_FOR or ("le", "1.0") not in key[1]):
        return
    if not snapshots or key in snapshots[-1].values:
        snapshots.append(Snapshot(role=role))
        del snapshots[1:-1]
    if len(snapshots[-1].values) < _MAX_SERIES and 0 <= value < math.inf:
        snapshots[-1].values[key] = Value(value, evidence)


def pair_up(snapshots: Sequence[Snapshot]) -> list[Scrapes]:
    """Return the processes that snapshots belong to, each with its first and last one."""
    left = [snapshot for snapshot in snapshots if snapshot.values]
    found = []
    while left:
        last = next(
            s for s in left if not any(s.precedes(other) for other in left if other is not s and not other.precedes(s))
        )
        earlier = [snapshot for snapshot in left if snapshot is not last and snapshot.precedes(last)]
        first = next((s for s in earlier if all(s.precedes(other) for other in earlier)), None)
        found.append(Scrapes(last, first))
        left = [snapshot for snapshot in left if snapshot is not last and not any(snapshot is e for e in earlier)]
    return found
