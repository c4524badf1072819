"""The metrics reference, `docs/metrics.md`, which scripts/docs.py writes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from kvdiag.catalogue import METRICS, Metric
from kvdiag.dashboards import rules, vllm_series
from kvdiag.dashboards.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_INTRODUCTION: Final = """\
# Metrics

<!-- Generated from src/kvdiag/catalogue.py and dashboards/vllm_series.py; do not edit. -->

Names start with `kvdiag_`, units are base units and part of the name, counters end in `_total`. Labels are bounded:
conversation and request ids are never labels. Where the label values are known, every series exists from the start at 0,
so that rates see the first event.

The **router** serves its metrics on its own `/metrics`. The **connector**'s appear on each engine's `/metrics`, beside
vLLM's, with vLLM's labels `model_name` and `engine` in front. By OTLP the names are the same without `_total`.

With several API servers in one engine (`--api-server-count`) prometheus_client works across processes: counters and
histograms add up, gauges are summed or the newest or largest wins, as the table says. Lost there: exemplars, `_created`
and the `process_*` series.

Two directions: `decode_to_prefill` is the read-back that later turns live on, `prefill_to_decode` the hand-off of every
turn. The reader records a transfer.
"""


def page() -> str:
    """Return the page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    for emitter, title in (("router", "Router"), ("connector", "Connector")):
        yield f"## {title}\n"
        yield from _table(
            ("metric", "type", "labels", "meaning"),
            (_metric(metric) for metric in METRICS.values() if emitter in metric.emitter),
        )
    yield "## `kvdiag export`\n"
    yield "What stock logs tell, counted from the moment at which the command starts:\n"
    yield from (f"* `{metric.name}`" for metric in METRICS.values() if "log" in metric.emitter)
    yield ""
    yield "## Buckets\n"
    yield "Seconds.\n"
    histograms = (metric for metric in METRICS.values() if metric.buckets)
    yield from _table(
        ("histogram", "bounds"), ((f"`{m.name}`", " ".join(f"{bound:g}" for bound in m.buckets)) for m in histograms)
    )
    yield "## Recorded by the rules\n"
    yield from _table(
        ("series", "expression"),
        ((f"`{name}`", f"`{expr}`".replace("|", "\\|")) for name, expr in rules.recordings(Settings()).items()),
    )
    yield "## vLLM's own series that the dashboards use\n"
    yield "Queries name every spelling, newest first. `nixl`: only with a NIXL connector.\n"
    yield from _table(("series", "releases", "exposed", "meaning"), _stock())


def _metric(metric: Metric) -> tuple[str, ...]:
    kind = metric.type if metric.type != "gauge" else f"gauge ({metric.multiprocess_mode.removeprefix('live')})"
    return f"`{metric.name}`", kind, "<br>".join(_labels(metric)), metric.help


def _labels(metric: Metric) -> Iterator[str]:
    for label, values in metric.labels.items():
        yield f"`{label}`" + (f": {', '.join(values)}" if values and len(values) <= 15 else "")
    if metric.bound:
        yield f"bounded by {metric.bound}"


def _stock() -> Iterator[tuple[str, ...]]:
    for series in vllm_series.SERIES:
        for spelling in series.spellings:
            since = "" if spelling.since == vllm_series.EARLIEST else f"from {_release(spelling.since)}"
            until = f"before {_release(spelling.until)}" if spelling.until else ""
            yield f"`{spelling.name}`", f"{since} {until}".strip() or "all", series.exposed, series.what


def _release(release: vllm_series.Release) -> str:
    return ".".join(map(str, release))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(page())
