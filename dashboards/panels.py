"""Panels: the few kinds that the boards use, each with units, thresholds and a text for idle times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    table,
    text,
    timeseries,
)
from grafana_foundation_sdk.models import common as cm
from grafana_foundation_sdk.models import dashboard as dm
from grafana_foundation_sdk.models import heatmap as hm
from grafana_foundation_sdk.models import prometheus as pm
from grafana_foundation_sdk.models import text as tm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from grafana_foundation_sdk.cog.builder import Builder

SOURCE: Final = cm.DataSourceRef(type_val="prometheus", uid="$datasource")
GOOD, WARN, BAD, NEUTRAL, MUTED = "green", "orange", "red", "blue", "#8e8e8e"
IDLE: Final = -1
"""What `promql.or_idle` gives; shown as words."""

Words = dict[int, tuple[str, str]]
"""Numbers that read as (text, colour)."""
Steps = tuple[tuple[float | None, str], ...]
PLAIN: Final[Steps] = ((None, NEUTRAL),)
ZERO_IS_GOOD: Final[Steps] = ((None, GOOD), (1e-9, BAD))

CAUSE_COLOURS: Final = {
    "first_turn": "#5794f2",
    "local_hit": "#4c9a41",
    "remote_hit": "#73bf69",
    "below_threshold": "#b6d7a8",
    "missing_metadata": "#f2cc0c",
    "feature_off": "#ff9830",
    "prefix_diverged": "#b877d9",
    "expired_remote_read": "#e02f44",
    "expired_handoff": "#e5a0a6",
    "suspect_kv": "#ff4dff",
    "peer_unreachable": "#fa6400",
    "transfer_failed": "#ff7383",
    "slow_transfer": "#ffb357",
    "queueing": "#8ab8ff",
    "kv_pressure": "#a352cc",
    "compute_bound": "#c0d8ff",
    "client": "#7f7f7f",
    "upstream_error": "#c9813a",
    "router_overhead": "#b8a200",
    "unexplained": "#d9d9d9",
}


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel."""

    expr: str
    legend: str = ""
    exemplar: bool = False


@dataclass(frozen=True, slots=True)
class Placed:
    """A panel and its width in grid columns (24 make a row)."""

    panel: Builder[dm.Panel]
    width: int


@dataclass(frozen=True, slots=True)
class Row:
    """Panels beside each other, under a heading where there is one."""

    panels: tuple[Placed, ...]
    height: int
    title: str = ""


_Panel = TypeVar("_Panel", stat.Panel, timeseries.Panel, bargauge.Panel, table.Panel, heatmap.Panel)


def stat_panel(
    title: str,
    why: str,
    *queries: Query,
    unit: str,
    steps: Steps = PLAIN,
    idle: str = "No traffic",
    absent: str = "Router not scraped",
    decimals: int | None = None,
    link: str = "",
    sparkline: bool = True,
    words: Words | None = None,
) -> stat.Panel:
    """One or a few big numbers; -1 reads as `idle`, no series as `absent`, others as `words` say."""
    panel = (
        _base(stat.Panel(), title, why, unit, absent, link)
        .color_mode(cm.BigValueColorMode.VALUE)
        .graph_mode(cm.BigValueGraphMode.AREA if sparkline else cm.BigValueGraphMode.NONE)
        .text_mode(cm.BigValueTextMode.VALUE_AND_NAME if len(queries) > 1 else cm.BigValueTextMode.VALUE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(_thresholds(steps))
        .mappings([_value_map({IDLE: (idle, MUTED), **(words or {})})])
    )
    if decimals is not None:
        panel = panel.decimals(decimals)
    return _ask(panel, queries)


def graph_panel(
    title: str,
    why: str,
    *queries: Query,
    unit: str,
    absent: str = "No traffic, or router not scraped (see top row)",
    stacked: bool = False,
    colours: Mapping[str, str] | None = None,
    limit: float | None = None,
    link: str = "",
    table_legend: bool = False,
) -> timeseries.Panel:
    """Lines over time, or stacked areas; `limit` draws a dashed line."""
    panel = (
        _base(timeseries.Panel(), title, why, unit, absent, link)
        .min(0)
        .line_width(1 if stacked else 2)
        .fill_opacity(60 if stacked else 0)
        .color_scheme(dashboard.FieldColor().mode(dm.FieldColorModeId.PALETTE_CLASSIC))
        .show_points(cm.VisibilityMode.NEVER)
        .span_nulls(False)  # noqa: FBT003 - the SDK's signature; a gap means that nothing happened
        .stacking(common.StackingConfig().mode(cm.StackingMode.NORMAL if stacked else cm.StackingMode.NONE))
        .tooltip(common.VizTooltipOptions().mode(cm.TooltipDisplayMode.MULTI).sort(cm.SortOrder.DESCENDING))
        .legend(_legend(as_table=table_legend))
    )
    if limit is not None:
        panel = panel.thresholds(_thresholds(((None, "transparent"), (limit, BAD)))).thresholds_style(
            common.GraphThresholdsStyleConfig().mode(cm.GraphThresholdsStyleMode.DASHED)
        )
    for name, colour in (colours or {}).items():
        panel = panel.override_by_name(name, [_fixed(colour)])
    return _ask(panel, queries)


def bar_panel(
    title: str, why: str, query: Query, *, unit: str, absent: str, colours: Mapping[str, str], link: str = ""
) -> bargauge.Panel:
    """Bars for the totals of the chosen time range, largest first."""
    panel = (
        _base(bargauge.Panel(), title, why, unit, absent, link)
        .min(0)
        .orientation(cm.VizOrientation.HORIZONTAL)
        .display_mode(cm.BarGaugeDisplayMode.BASIC)
        # Else two bars fill the panel with letters that leave no room for their names.
        .text(common.VizTextDisplayOptions().title_size(14).value_size(18))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(_thresholds(PLAIN))
    )
    for name, colour in colours.items():
        panel = panel.override_by_name(name, [_fixed(colour)])
    return panel.with_target(_target(query, "A").instant())


def table_panel(
    title: str,
    why: str,
    columns: Mapping[str, tuple[str, str]],
    *,
    labels: Mapping[str, str],
    absent: str,
    links: Mapping[str, tuple[str, str]] | None = None,
    sort: str,
    words: Mapping[str, Words] | None = None,
    hidden: tuple[str, ...] = (),
) -> table.Panel:
    """Instant queries side by side: `columns` maps a heading to (query, unit), `labels` a label to its heading.

    `links` maps a heading to (title, URL) of a data link, `words` a heading to what its numbers read as;
    `hidden` labels have no column.
    """
    panel = (
        _base(table.Panel(), title, why, "short", absent, "")
        .sort_by([common.TableSortByFieldState().display_name(sort).desc(True)])  # noqa: FBT003 - the SDK's signature
        # Else an empty cell would read as the words for an empty table.
        .override_by_field_type("string", [dm.DynamicConfigValue("noValue", "-")])
        .override_by_field_type("number", [dm.DynamicConfigValue("noValue", "-")])
    )
    for letter, (heading, (expr, unit)) in zip("ABCDEFGH", columns.items(), strict=False):
        target = _target(Query(expr), letter).instant().format(pm.PromQueryFormat.TABLE)
        # Counts over a range are extrapolated: 1.04 turns.
        whole = [dm.DynamicConfigValue("decimals", 0)] if unit == "short" else []
        panel = panel.with_target(target).override_by_name(heading, [dm.DynamicConfigValue("unit", unit), *whole])
    for heading, texts in (words or {}).items():
        panel = panel.override_by_name(heading, _worded(texts))
    for heading, (name, url) in (links or {}).items():
        panel = panel.override_by_name(heading, [dm.DynamicConfigValue("links", [{"title": name, "url": url}])])
    renamed = {f"Value #{letter}": heading for letter, heading in zip("ABCDEFGH", columns, strict=False)}
    if len(columns) == 1:
        renamed = {"Value #A": next(iter(columns)), "Value": next(iter(columns))}
    order = {name: n for n, name in enumerate([*labels, *renamed])}
    return panel.with_transformation(dm.DataTransformerConfig(id_val="merge", options={})).with_transformation(
        dm.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": dict.fromkeys(("Time", *hidden), True),
                "indexByName": order,
                "renameByName": {**labels, **renamed},
            },
        )
    )


def heatmap_panel(title: str, why: str, histogram_rate: str, *, unit: str, absent: str) -> heatmap.Panel:
    """Draw a classic histogram over time; `histogram_rate` must keep `le`."""
    return (
        _base(heatmap.Panel(), title, why, unit, absent, "")
        .calculate(False)  # noqa: FBT003 - the SDK's signature
        .cell_gap(1)
        .color(heatmap.HeatmapColorOptions().mode(hm.HeatmapColorMode.SCHEME).scheme("Oranges").steps(64).exponent(0.5))
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .with_target(_target(Query(histogram_rate, "{{le}}"), "A").range().format(pm.PromQueryFormat.HEATMAP))
    )


def text_panel(title: str, markdown: str) -> text.Panel:
    """Words."""
    return text.Panel().title(title).mode(tm.TextMode.MARKDOWN).content(markdown)


def _base(panel: _Panel, title: str, why: str, unit: str, absent: str, link: str) -> _Panel:
    panel = panel.title(title).description(why).datasource(SOURCE).unit(unit).no_value(absent)
    if link:
        panel = panel.data_links([dashboard.DashboardLink("Open detail").url(link)])
    return panel


def _ask(panel: _Panel, queries: Sequence[Query]) -> _Panel:
    for letter, query in zip("ABCDEFGH", queries, strict=False):
        panel = panel.with_target(_target(query, letter).range())
    return panel


def _target(query: Query, letter: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(letter).datasource(SOURCE)
    return target.exemplar(True) if query.exemplar else target  # noqa: FBT003 - the SDK's signature


def _thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    marks = [dm.Threshold(value=value, color=colour) for value, colour in steps]
    return dashboard.ThresholdsConfig().mode(dm.ThresholdsMode.ABSOLUTE).steps(marks)


def _fixed(colour: str) -> dm.DynamicConfigValue:
    return dm.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})


def _value_map(words: Words) -> dm.ValueMap:
    results = {
        str(number): dm.ValueMappingResult(text=text, color=colour, index=place)
        for place, (number, (text, colour)) in enumerate(words.items())
    }
    return dm.ValueMap(options=results)


def _worded(words: Words) -> list[dm.DynamicConfigValue]:
    return [
        dm.DynamicConfigValue("mappings", [_value_map(words)]),
        dm.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}),
    ]


def _legend(*, as_table: bool) -> common.VizLegendOptions:
    legend = common.VizLegendOptions().show_legend(True)  # noqa: FBT003 - the SDK's signature
    if as_table:
        placement: Literal["right"] = "right"
        return (
            legend.display_mode(cm.LegendDisplayMode.TABLE)
            .placement(cm.LegendPlacement(placement))
            .calcs(["lastNotNull"])
        )
    return legend.display_mode(cm.LegendDisplayMode.LIST).placement(cm.LegendPlacement.BOTTOM)
