"""The OTLP receiver as fixtures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.exporters.collector import PROTOCOLS, Collector, over_http

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def http_collector() -> Iterator[Collector]:
    with over_http() as collector:
        yield collector


@pytest.fixture(params=PROTOCOLS)
def collector(request: pytest.FixtureRequest) -> Iterator[Collector]:
    with PROTOCOLS[request.param]() as receiving:
        yield receiving
