"""The few shapes that every query is made of. Idle series give no result instead of NaN."""

from __future__ import annotations

from typing import Final

WINDOW: Final = "$__rate_interval"
ROUTER: Final = 'job=~"$job"'
ENGINE: Final = 'job=~"$job",instance=~"$prefill|$decode",model_name=~"$model"'
PREFILL: Final = 'job=~"$job",instance=~"$prefill",model_name=~"$model"'
DECODE: Final = 'job=~"$job",instance=~"$decode",model_name=~"$model"'


def with_role(expression: str) -> str:
    """Add the engine's role to a result that has `job` and `instance`."""
    return f"{expression} * on (job, instance) group_left (role) max by (job, instance, role) (kvdiag_connector_info)"


def with_peer(expression: str) -> str:
    """Add the other engine's instance as `engine` to a result that has its id in `peer`; an id that nobody claims stays."""
    known = (
        'label_replace(label_replace(max by (engine_id, instance) (kvdiag_connector_info), "peer", "$1", "engine_id", "(.*)"), '
        '"engine", "$1", "instance", "(.*)")'
    )
    known = f"max by (peer, engine) ({known})"
    unknown = f'label_replace({expression}, "engine", "$1", "peer", "(.*)") unless on (peer) {known}'
    return f"({expression}) * on (peer) group_left (engine) {known} or {unknown}"


def rate(metric: str, selector: str, by: str = "", window: str = WINDOW) -> str:
    """Per second, summed by these labels."""
    return f"sum{_by(by)}(rate({metric}{{{selector}}}[{window}]))"


def increase(metric: str, selector: str, by: str = "", window: str = "$__range") -> str:
    """Count over a window, summed by these labels."""
    return f"sum{_by(by)}(increase({metric}{{{selector}}}[{window}]))"


def ratio(part: str, whole: str) -> str:
    """Divide; absent, not NaN, while nothing happens."""
    return f"{part} / ({whole} > 0)"


def quantile(q: float, histogram: str, selector: str, by: str = "", window: str = WINDOW) -> str:
    """Estimate a quantile; absent, not NaN, while nothing happens."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q:g}, {rate(f'{histogram}_bucket', selector, labels, window)}) >= 0"


def mean(histogram: str, selector: str, by: str = "", window: str = WINDOW) -> str:
    """Average a histogram's observations."""
    return ratio(rate(f"{histogram}_sum", selector, by, window), rate(f"{histogram}_count", selector, by, window))


def or_idle(expression: str, witness: str) -> str:
    """Give -1 where the witness metric is scraped but there is nothing to divide: `No traffic`, not `not enabled`."""
    return f"({expression}) or (0 * sum({witness}) - 1)"


def named(expression: str, label: str) -> str:
    """Give series whose label is empty a word for their legend."""
    return f'label_replace({expression}, "{label}", "no detail", "{label}", "")'


def _by(labels: str) -> str:
    return f" by ({labels}) " if labels else ""
