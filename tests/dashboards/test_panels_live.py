"""Every panel against a real Prometheus: data when healthy, data when faulty, and the intended words when idle or absent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from kvdiag import runbooks
from kvdiag.dashboards import files
from kvdiag.dashboards.settings import Settings

DOCUMENTS: Final = files.documents(Settings(), {name: runbooks.page(name).text for name in runbooks.names()})
MAIN: Final = [path for path in DOCUMENTS if path.startswith("boards/")]
ONLY_WHEN_FAULTY: Final = {"What to mend first", "Firing alerts"}
"""Empty is the good news in these."""

Ask = Callable[[str, str], list[dict[str, Any]]]


def asking(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in document["panels"] if panel.get("targets")]


def empty(panel: dict[str, Any], ask: Ask, scenario: str) -> list[str]:
    """Return the panel's queries that have no series, or nothing but NaN."""
    answers = {target["expr"]: ask(target["expr"], scenario) for target in panel["targets"]}
    return [expr for expr, series in answers.items() if all(one["value"][1] == "NaN" for one in series)]


@pytest.mark.parametrize("path", MAIN)
def test_every_panel_has_data_when_healthy(path: str, ask: Ask) -> None:
    without = {p["title"]: empty(p, ask, "healthy") for p in asking(DOCUMENTS[path])}
    assert {title for title, missing in without.items() if missing} - ONLY_WHEN_FAULTY == set()


@pytest.mark.parametrize("path", DOCUMENTS)
def test_every_panel_has_data_when_faulty(path: str, ask: Ask) -> None:
    without = {p["title"]: empty(p, ask, "fault") for p in asking(DOCUMENTS[path])}
    assert {title: missing for title, missing in without.items() if missing} == {}


@pytest.mark.parametrize("path", DOCUMENTS)
def test_no_panel_shows_nan_or_a_fault_when_idle(path: str, ask: Ask) -> None:
    """Each query gives numbers, the sign for idle, or nothing, for which the panel has words."""
    for panel in asking(DOCUMENTS[path]):
        for target in panel["targets"]:
            values = [one["value"][1] for one in ask(target["expr"], "idle")]
            assert "NaN" not in values, panel["title"]


def shown(title: str, board: str, ask: Ask, scenario: str) -> str:
    """Return what a stat panel would show."""
    panel = next(p for p in DOCUMENTS[board]["panels"] if p["title"] == title)
    defaults = panel["fieldConfig"]["defaults"]
    series = ask(panel["targets"][0]["expr"], scenario)
    if not series:
        return str(defaults["noValue"])
    value = f"{float(series[0]['value'][1]):g}"
    return str(defaults["mappings"][0]["options"].get(value, {"text": value})["text"])


@pytest.mark.parametrize(
    ("title", "idle", "absent"),
    [
        ("Prefill engines with connector", "2", "Connector not enabled"),
        ("Decode engines with connector", "2", "Connector not enabled"),
        ("Routers", "1", "Router not scraped"),
        ("Turns per minute", "No traffic", "Router not scraped"),
        ("Later turns that reused", "No traffic", "Router not scraped"),
        ("Later turns within 2 s", "No traffic", "Router not scraped"),
        ("TTFT saved per later turn", "No hold-out", "Router not scraped"),
        ("Prompt tokens lost", "No traffic", "Router not scraped"),
        ("Suspect answers", "0", "Connector not enabled"),
    ],
)
def test_overview_tells_no_traffic_from_not_enabled(title: str, idle: str, absent: str, ask: Ask) -> None:
    assert shown(title, "boards/overview.json", ask, "idle") == idle
    assert shown(title, "boards/overview.json", ask, "nothing") == absent


def test_variables_find_their_values(ask: Ask) -> None:
    engines = ask('count by (instance) (kvdiag_connector_info{job=~"$job",role="prefill"})', "healthy")
    assert {one["metric"]["instance"] for one in engines} == {"prefill-0:8100", "prefill-1:8101"}


def test_the_fault_shows_where_the_eye_looks(ask: Ask) -> None:
    """The same panels that are green when healthy are red in the fault: they would be useless otherwise."""
    overview = {p["title"]: p for p in DOCUMENTS["boards/overview.json"]["panels"]}

    def value(title: str, scenario: str) -> float:
        return float(ask(overview[title]["targets"][0]["expr"], scenario)[0]["value"][1])

    assert value("Later turns that reused", "healthy") > 0.8
    assert value("Later turns that reused", "fault") < 0.6
    assert value("Prompt tokens lost", "healthy") < 0.1 < value("Prompt tokens lost", "fault")
    assert value("Suspect answers", "healthy") == 0 < value("Suspect answers", "fault")
    assert value("TTFT saved per later turn", "healthy") > 0


def test_pairs_are_named_by_instance_and_engines_that_are_gone_by_their_id(ask: Ask) -> None:
    panel = next(p for p in DOCUMENTS["boards/transfers.json"]["panels"] if p["title"] == "Every pair")
    columns = [{one["metric"]["engine"] for one in ask(target["expr"], "fault")} for target in panel["targets"]]
    moved, failed = columns[0], columns[-1]
    assert moved == {"prefill-0:8100", "prefill-1:8101", "decode-0:8200", "decode-1:8201"}
    assert failed == moved | {"id of an engine that is gone"}
