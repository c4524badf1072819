"""What the stack's Prometheus has seen, asked as Grafana asks."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvdiag.localstack import LocalStack

PATIENCE_S = 120.0
"""How long a scrape may take to succeed on a busy machine."""
VARIABLES = {
    "$__rate_interval": "4m",
    "$__range": "10m",
    "$job": ".*",
    "$prefill": ".*",
    "$decode": ".*",
    "$model": ".*",
}


def ask(stack: LocalStack, expr: str, at: float) -> list[dict[str, Any]]:
    """Answer an instant query with a board's default variables; fails with Prometheus' words where it is wrong."""
    assert stack.prometheus is not None
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    url = f"{stack.prometheus.url}/api/v1/query?{urllib.parse.urlencode({'query': expr, 'time': at})}"
    try:
        with urllib.request.urlopen(url) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(f"{json.load(error)['error']} in {expr}") from None
    return result


def when(stack: LocalStack, expr: str) -> float:
    """Wait until the query has a result, and return the time at which it had: later scrapes may fail again."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        now = time.time()
        if ask(stack, expr, now):
            return now
        time.sleep(0.3)
    raise AssertionError(f"{expr} had no result within {PATIENCE_S:.0f} s")


def fresh(stack: LocalStack, expr: str) -> float:
    """As `when`, with every target scraped successfully at that time."""
    targets = 1 + len(stack.prefills) + len(stack.decodes)
    return when(stack, f"({expr}) and on () (count(up == 1) == {targets})")
