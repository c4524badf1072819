"""All scenarios, ordered so that few engines have to be started."""

from __future__ import annotations

from typing import Final

from benchmarks.faults import handles, outages, settings, stock

SCENARIOS: Final = tuple(
    sorted(
        (*handles.SCENARIOS, *settings.SCENARIOS, *outages.SCENARIOS, *stock.SCENARIOS),
        key=lambda scenario: (scenario.engines[0].startswith("stock"), scenario.engines),
    )
)
