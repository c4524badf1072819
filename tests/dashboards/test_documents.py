"""Static checks: every board is complete, every query parses and names only what exists."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import promql_parser
import pytest
from grafana_foundation_sdk.models.dashboard import Dashboard

from kvdiag import runbooks
from kvdiag.catalogue import METRICS, Metric
from kvdiag.causes import CAUSES
from kvdiag.dashboards import files, rules, vllm_series
from kvdiag.dashboards.alerts import alerts
from kvdiag.dashboards.panels import CAUSE_COLOURS
from kvdiag.dashboards.settings import Settings
from kvdiag.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2] / "dashboards"
PAGES: Final = {name: runbooks.page(name).text for name in runbooks.names()}
DOCUMENTS: Final = files.documents(Settings(), PAGES)
TARGET_LABELS: Final = {"job", "instance", "model_name", "engine", "le", "__name__"}
"""What scraping, the connector's constant labels and histograms add to the catalogue's labels."""
PROCESS: Final = {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"}


def panels(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def questions() -> Iterator[tuple[str, str]]:
    """Yield (where, PromQL) of every panel, variables replaced, and of every rule."""
    for path, document in DOCUMENTS.items():
        for panel in panels(document):
            for target in panel.get("targets", ()):
                yield f"{path}: {panel['title']}", replaced(target["expr"])
    yield from rules.recordings(Settings()).items()
    for alert in alerts(Settings()):
        yield alert.name, alert.expr


def replaced(expr: str) -> str:
    return expr.replace("$__rate_interval", "4m").replace("$__range", "1h").replace("$", "")


def selectors(expr: str) -> list[promql_parser.VectorSelector]:
    """Return every vector selector of a query."""
    found: list[promql_parser.VectorSelector] = []

    def visit(node: Any) -> None:  # noqa: ANN401 - the parser's nodes share no base class
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
            child = getattr(node, name, None)
            if child is not None and not isinstance(child, str | int | float):
                visit(child)
        for child in getattr(node, "args", None) or ():
            visit(child)

    visit(promql_parser.parse(expr))
    return found


def catalogued(name: str) -> Metric | None:
    """Return the metric that a series name belongs to."""
    return METRICS.get(name) or METRICS.get(re.sub(r"_(bucket|sum|count)$", "", name))


def test_the_committed_files_are_what_the_builders_give() -> None:
    wanted = files.texts(Settings(), PAGES)
    kept = {
        str(path.relative_to(ROOT)): path.read_text()
        for path in ROOT.rglob("*")
        if path.suffix in {".json", ".yaml"} and "__pycache__" not in path.parts
    }
    assert sorted(kept) == sorted(wanted), "run: make docs, and remove what is left over"
    assert [name for name, text in wanted.items() if kept[name] != text] == [], "stale; run: make docs"


@pytest.mark.parametrize("path", DOCUMENTS)
class TestDocument:
    def test_survives_a_round_trip_through_the_schema(self, path: str) -> None:
        document = DOCUMENTS[path]
        assert Dashboard.from_json(document).uid == document["uid"]

    def test_panels_have_title_reason_unit_and_words_for_no_data(self, path: str) -> None:
        for panel in panels(DOCUMENTS[path]):
            if panel["type"] == "text":
                continue
            defaults = panel["fieldConfig"]["defaults"]
            assert panel["title"]
            assert panel["description"].endswith(".")
            assert defaults["unit"]
            assert defaults["noValue"]
            assert panel["targets"]
            assert panel["datasource"] == {"type": "prometheus", "uid": "$datasource"}

    def test_ids_are_unique_and_the_uid_fits(self, path: str) -> None:
        document = DOCUMENTS[path]
        assert [n for n, count in Counter(panel["id"] for panel in document["panels"]).items() if count > 1] == []
        assert re.fullmatch(r"[\w-]{1,40}", document["uid"])

    def test_panels_neither_overlap_nor_overflow(self, path: str) -> None:
        taken: set[tuple[int, int]] = set()
        for panel in DOCUMENTS[path]["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not taken & cells, panel["title"]
            assert place["x"] + place["w"] <= 24
            taken |= cells

    def test_the_sdks_defects_are_mended(self, path: str) -> None:
        document = DOCUMENTS[path]
        assert all("placement" not in item for item in (*document["links"], *document["annotations"]["list"]))
        assert all("auto" not in variable for variable in document["templating"]["list"])
        assert document["editable"] is False

    def test_variables_are_the_agreed_ones(self, path: str) -> None:
        variables = {v["name"]: v for v in DOCUMENTS[path]["templating"]["list"]}
        assert list(variables) == ["datasource", "job", "model", "prefill", "decode"]
        assert all(v["refresh"] == 2 and v["allValue"] == ".*" for n, v in variables.items() if n != "datasource")

    def test_links_lead_to_boards_that_exist(self, path: str) -> None:
        known = {document["uid"] for document in DOCUMENTS.values()}
        for uid in re.findall(r"/d/([\w-]+)[?)\"\\]", str(DOCUMENTS[path])):
            assert uid in known


@pytest.mark.parametrize(("where", "expr"), list(questions()), ids=lambda value: value[:60])
class TestQuery:
    def test_names_only_series_that_exist(self, where: str, expr: str) -> None:
        recorded = rules.recordings(Settings())
        stock = {spelling.name for series in vllm_series.SERIES for spelling in series.spellings}
        stock |= {re.sub("_bucket$", suffix, name) for name in stock for suffix in ("_sum", "_count")}
        for selector in selectors(expr):
            name = str(selector.name)
            assert catalogued(name) or name in stock | PROCESS | {"ALERTS"} or name in recorded, name

    def test_matches_on_labels_that_the_series_has(self, where: str, expr: str) -> None:
        for selector in selectors(expr):
            metric = catalogued(str(selector.name))
            used = {matcher.name for matcher in selector.matchers.matchers}
            assert not metric or used <= {*metric.labels, *TARGET_LABELS}, (selector.name, used)

    def test_matches_only_values_that_the_label_can_have(self, where: str, expr: str) -> None:
        for selector in selectors(expr):
            metric = catalogued(str(selector.name))
            for matcher in selector.matchers.matchers if metric else ():
                values = CAUSES if matcher.name == "cause" else (metric.labels.get(matcher.name) if metric else None)
                if values is not None and matcher.value not in {".*", ""}:
                    assert set(matcher.value.split("|")) <= set(values), (where, matcher.value)

    def test_counters_are_read_through_rate_or_increase_only(self, where: str, expr: str) -> None:
        bare = re.sub(r"(rate|increase|last_over_time)\([^()]*?\[[^\]]+\]( offset \w+)?\)", "", expr)
        assert not re.search(r"kvdiag_\w+_(total|bucket|sum|count)\b", bare), bare

    def test_panels_rate_over_the_intervals_that_grafana_gives_or_a_stated_window(self, where: str, expr: str) -> None:
        if ":" in where and "json" in where:
            assert set(re.findall(r"\[(\w+)\]", expr)) <= {"4m", "5m", "1h"}


def test_every_cause_has_a_colour_of_its_own() -> None:
    assert list(CAUSE_COLOURS) == list(CAUSES), "CAUSE_COLOURS in dashboards/panels.py has the causes, in their order"
    assert len(set(CAUSE_COLOURS.values())) == len(CAUSES), "two causes share a colour in dashboards/panels.py"


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"ttft_objective": 2.2}, "no bucket bound; choose from 0.01"),
        ({"ttft_target": 0.5}, "cannot be alerted on"),
        ({"ttft_target": 1.0}, "cannot be alerted on"),
        ({"grafana_url": "grafana:3000"}, "write it like http://HOST:3000"),
    ],
)
def test_settings_that_make_no_sense_are_refused(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Settings(**chosen)


def test_a_slash_at_the_end_of_grafanas_url_does_no_harm() -> None:
    assert Settings(grafana_url="http://grafana:3000/") == Settings(grafana_url="http://grafana:3000")


def test_the_objective_moves_panels_and_rules() -> None:
    texts = files.texts(Settings(ttft_objective=0.5), PAGES)
    assert 'le="0.5"' in texts["kvdiag.rules.yaml"]
    assert "Later turns within 0.5 s" in texts["boards/overview.json"]
