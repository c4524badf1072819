"""The graph is closed: cause - metric - panel - alert - runbook - test. Nobody is led to a page that is not there."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from kvdiag import runbooks
from kvdiag.catalogue import METRICS
from kvdiag.causes import CAUSES
from kvdiag.dashboards import files, rules, vllm_series
from kvdiag.dashboards.alerts import Alert, alerts
from kvdiag.dashboards.settings import Settings

PAGES: Final = {name: runbooks.page(name).text for name in runbooks.names()}
DOCUMENTS: Final = {d["uid"]: d for d in files.documents(Settings(), PAGES).values()}
ALERTS: Final = alerts(Settings())
RULES: Final = {r["alert"]: r for r in rules.rule_file(Settings())["groups"][-1]["rules"]}
STOCK: Final = {
    re.sub(r"_(bucket|sum|count)$", "", spelling.name) for series in vllm_series.SERIES for spelling in series.spellings
}
_SERIES: Final = re.compile(r"\b(kvdiag_\w+|vllm:\w+)")


def series(expr: str) -> set[str]:
    """Return the raw families that a query rests on, recorded series followed to their source."""
    for name, recorded in rules.recordings(Settings()).items():
        expr = expr.replace(name, f"({recorded})")
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in _SERIES.findall(expr)}


def panel(alert: Alert) -> dict[str, Any]:
    """Return the panel that an alert's link opens."""
    annotations = RULES[alert.name]["annotations"]
    document = DOCUMENTS[annotations["__dashboardUid__"]]
    return next(p for p in document["panels"] if str(p["id"]) == annotations["__panelId__"])


def pages_of(alert: Alert) -> set[str]:
    """Return every page that an alert may lead to."""
    if "$labels.cause" in alert.runbook:
        return set(CAUSES)
    return set(re.findall(r"(?:^|}})(\w+)(?={{|$)", alert.runbook))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
class TestAlert:
    def test_leads_to_pages_that_exist_as_text_and_as_board(self, alert: Alert) -> None:
        pages = pages_of(alert)
        assert pages
        assert pages <= set(PAGES)
        assert {f"kvdiag-runbook-{name}" for name in pages} <= set(DOCUMENTS)

    def test_opens_a_panel_that_shows_what_it_measures(self, alert: Alert) -> None:
        shown = set().union(*(series(target["expr"]) for target in panel(alert)["targets"]))
        assert series(alert.expr) & shown

    def test_rests_on_metrics_that_exist(self, alert: Alert) -> None:
        assert series(alert.expr) <= {*METRICS, *STOCK}

    def test_names_its_cause_in_a_label(self, alert: Alert) -> None:
        assert RULES[alert.name]["labels"].get("cause", "") == alert.cause
        assert not alert.cause or alert.cause in CAUSES

    def test_says_numbers_and_what_a_false_alarm_looks_like(self, alert: Alert) -> None:
        assert "{{" in alert.summary
        assert len(alert.why) > 20


@pytest.mark.parametrize("cause", CAUSES.values(), ids=lambda cause: cause.name)
class TestCause:
    def test_faults_have_an_alert_that_leads_to_their_page(self, cause: Any) -> None:  # noqa: ANN401
        leading = {alert.name for alert in ALERTS if alert.cause == cause.name and cause.name in pages_of(alert)}
        assert bool(leading) is (cause.kind == "fault")

    def test_its_page_is_a_board_with_live_numbers_of_this_cause(self, cause: Any) -> None:  # noqa: ANN401
        document = DOCUMENTS[f"kvdiag-runbook-{cause.name}"]
        queries = [target["expr"] for p in document["panels"] for target in p.get("targets", ())]
        assert any(f'cause="{cause.name}"' in expr and "kvdiag_turns_total" in expr for expr in queries)
        assert any("kvdiag_lost_tokens_total" in expr for expr in queries)

    def test_commands_of_its_page_ask_for_series_that_exist(self, cause: Any) -> None:  # noqa: ANN401
        commands = " ".join(step.command for step in runbooks.page(cause.name).steps("Diagnosis"))
        process = {"kvdiag_streaming"}
        assert series(commands) - process <= {*METRICS, *STOCK}


def test_a_page_links_only_to_boards() -> None:
    for document in DOCUMENTS.values():
        for p in document["panels"]:
            for uid in re.findall(r"\(/d/([\w-]+)\)", p.get("options", {}).get("content", "")):
                assert uid in DOCUMENTS
