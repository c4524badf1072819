"""All scenarios, ordered so that few engines have to be started."""

from __future__ import annotations

from typing import Final

from benchmarks.faults import handles, outages, settings, stock, traffic, wires
from benchmarks.faults.scenario import SCENARIOS as _DEFINED
from benchmarks.faults.scenario import Scenario

SECTIONS: Final = {
    "Handles": handles,
    "Settings": settings,
    "Load and clients": traffic,
    "Outages": outages,
    "Network": wires,
    "Stock vLLM": stock,
}
"""The page's sections and the modules whose scenarios they show."""
SCENARIOS: Final = tuple(sorted(_DEFINED, key=lambda one: (one.engines[0].startswith("stock"), one.engines)))


def section(scenario: Scenario) -> str:
    """Return the section that a scenario belongs to."""
    return next(title for title, module in SECTIONS.items() if scenario.drive.__module__ == module.__name__)
