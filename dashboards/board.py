"""From panels to a Grafana document: variables, links, layout, and mending what the SDK gets wrong."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as dm

from kvdiag.dashboards.panels import GOOD, MUTED, SOURCE, WARN, Placed, Query, Row, stat_panel
from kvdiag.dashboards.promql import ROUTER, rate

GRID: Final = 24
TAG: Final = "kvdiag"
UID_PREFIX: Final = "kvdiag-"
KEEP: Final = "${__url_time_range}&${datasource:queryparam}&${job:queryparam}&${model:queryparam}&${prefill:queryparam}&${decode:queryparam}"
"""Query string that carries time range and variables to another board."""

_ENGINES: Final = '{__name__=~"kvdiag_connector_info|vllm:num_requests_running",job=~"$job"}'
_VARIABLES: Final = (
    ("job", "Job", 'label_values({__name__=~"kvdiag_build_info|vllm:num_requests_running"}, job)'),
    ("model", "Model", f"label_values({_ENGINES}, model_name)"),
    ("prefill", "Prefill", 'label_values(kvdiag_connector_info{job=~"$job",role="prefill"}, instance)'),
    ("decode", "Decode", 'label_values(kvdiag_connector_info{job=~"$job",role="decode"}, instance)'),
)


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard: the question that it answers and its panels."""

    name: str
    title: str
    question: str
    rows: tuple[Row, ...]
    tags: tuple[str, ...] = (TAG,)

    @property
    def uid(self) -> str:
        """Stable, so that links and alerts survive an import."""
        return UID_PREFIX + self.name


def link(name: str) -> str:
    """Return the URL of a board by name, with the reader's time range and variables."""
    return f"/d/{UID_PREFIX}{name}?{KEEP}"


def panel_id(title: str) -> int:
    """Return an id that stays when panels are added or moved: links and alerts name it."""
    return zlib.crc32(title.encode()) % 1_000_000 + 1


def state() -> Row:
    """Return the row that tells no traffic, no connector and no router apart; every board starts with it."""

    def engines(role: str) -> Placed:
        return Placed(
            stat_panel(
                f"{role.capitalize()} engines with connector",
                "Engines of this role that run kvdiag's connector and are scraped.",
                Query(f'count(kvdiag_connector_info{{job=~"$job",role="{role}"}})'),
                unit="short",
                steps=((None, GOOD),),
                absent="Connector not enabled",
                sparkline=False,
            ),
            6,
        )

    router = stat_panel(
        "Routers",
        "kvdiag routers that are scraped.",
        Query(f"count(kvdiag_build_info{{{ROUTER}}} and on (job, instance) kvdiag_router_handles)"),
        unit="short",
        steps=((None, GOOD),),
        sparkline=False,
    )
    traffic = stat_panel(
        "Turns per minute",
        "Turns that ended, first ones included.",
        Query(f"60 * {rate('kvdiag_turns_total', ROUTER)} or (0 * sum(kvdiag_router_handles{{{ROUTER}}}) - 1)"),
        unit="short",
        steps=((None, MUTED), (1e-9, GOOD)),
        decimals=1,
        sparkline=False,
        words={0: ("No traffic", MUTED)},
    )
    return Row((engines("prefill"), engines("decode"), Placed(router, 6), Placed(traffic, 6)), 3)


def document(board: Board) -> dict[str, Any]:
    """Return the board as Grafana's classic JSON (10.4 to 13)."""
    builder = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.question)
        .tags(list(board.tags))
        .readonly()
        .refresh("30s")
        .time("now-3h", "now")
        .tooltip(dm.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .annotation(_alerts())
        .link(
            dashboard.DashboardLink("kvdiag")
            .type(dm.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .include_vars(True)  # noqa: FBT003 - the SDK's signature
            .keep_time(True)  # noqa: FBT003 - the SDK's signature
        )
    )
    for name, label, query in _VARIABLES:
        builder = builder.with_variable(_variable(name, label, query))
    _lay_out(builder, board.rows)
    return _mend(json.loads(json.dumps(builder.build(), cls=JSONEncoder)))


def to_json(document_: dict[str, Any]) -> str:
    """Return the text that is committed: sorted, so that diffs show changes only."""
    return json.dumps(document_, indent=1, sort_keys=True) + "\n"


def _variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query({"query": query, "refId": f"variable-{name}"})
        .definition(query)
        .multi(True)  # noqa: FBT003 - the SDK's signature
        .include_all(True)  # noqa: FBT003 - the SDK's signature
        # `.*`, not `.+`: series without the label, such as the router's without a model, belong to All.
        .all_value(".*")
        .refresh(dm.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dm.VariableSort.ALPHABETICAL_ASC)
        .current(dm.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def _alerts() -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery()
        .name("Alerts")
        .datasource(SOURCE)
        .enable(True)  # noqa: FBT003 - the SDK's signature
        .icon_color(WARN)
        .expr('ALERTS{alertstate="firing",alertname=~"Kvdiag.*",severity!="info"}')
        .title_format("{{alertname}}")
        .step("60s")
    )


def _lay_out(builder: dashboard.Dashboard, rows: tuple[Row, ...]) -> None:
    y = 0
    for row in rows:
        if row.title:
            builder.with_row(dashboard.Row(row.title))
            y += 1
        x = 0
        for placed in row.panels:
            if x + placed.width > GRID:
                raise ValueError(f"a row is wider than {GRID} columns at {row.title or y}")
            builder.with_panel(_At(placed, dm.GridPos(h=row.height, w=placed.width, x=x, y=y)))
            x += placed.width
        y += row.height


class _At(Builder[dm.Panel]):
    """A panel at a fixed place: the SDK's own layout takes (0, 0) for unset and lets rows overflow."""

    def __init__(self, placed: Placed, place: dm.GridPos) -> None:
        self._placed = placed
        self._place = place

    def build(self) -> dm.Panel:
        """Build the panel and put it there."""
        panel = self._placed.panel.build()
        panel.grid_pos = self._place
        return panel


def _mend(document_: dict[str, Any]) -> dict[str, Any]:
    y = 0
    for panel in document_["panels"]:
        panel["id"] = panel_id(panel["title"])
        panel.get("options", {}).pop("footer", None)  # no longer an option of tables
        if panel["type"] == "row":
            panel["gridPos"] = {"h": 1, "w": GRID, "x": 0, "y": y}
        y = panel["gridPos"]["y"] + panel["gridPos"]["h"]
        for data_link in panel.get("fieldConfig", {}).get("defaults", {}).get("links") or []:
            _keep(data_link, {"title", "url", "targetBlank"})
    for item in (*document_["links"], *document_["annotations"]["list"]):
        item.pop("placement", None)  # would hide links in a menu
    for variable in document_["templating"]["list"]:
        for key in ("auto", "auto_count", "auto_min"):
            variable.pop(key, None)
    return document_


def _keep(item: dict[str, Any], keys: set[str]) -> None:
    for key in set(item) - keys:
        del item[key]
