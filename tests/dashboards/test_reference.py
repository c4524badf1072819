"""The metrics reference is generated and complete."""

from __future__ import annotations

from pathlib import Path

from kvdiag.catalogue import METRICS
from kvdiag.dashboards import reference, vllm_series

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_committed_page_is_what_the_catalogue_gives() -> None:
    assert PAGE.read_text() == reference.page(), "stale; run: make docs"


def test_every_metric_and_every_series_has_a_row() -> None:
    text = reference.page()
    names = [*METRICS, *(spelling.name for series in vllm_series.SERIES for spelling in series.spellings)]
    assert [name for name in names if f"| `{name}` |" not in text] == []
