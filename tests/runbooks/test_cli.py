"""`kvdiag runbook` prints pages as they are when piped and lists them otherwise."""

from __future__ import annotations

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from kvdiag import runbooks
from kvdiag.causes import CAUSES
from kvdiag.cli.runbook import command
from kvdiag.dashboards.alerts import Alert, alerts
from kvdiag.dashboards.settings import Settings
from kvdiag.errors import InputError


def test_prints_the_page_unchanged_when_piped() -> None:
    result = CliRunner().invoke(command, ["suspect_kv"])
    assert result.output == runbooks.page("suspect_kv").text


def test_lists_every_page_with_its_meaning() -> None:
    output = CliRunner().invoke(command, []).output
    assert [name for name in runbooks.names() if name not in output] == []
    assert CAUSES["queueing"].meaning in output


@pytest.mark.parametrize("alert", alerts(Settings()), ids=lambda alert: alert.name)
def test_takes_every_alerts_name(alert: Alert) -> None:
    page = alert.runbook if "{{" not in alert.runbook else "triage"
    assert CliRunner().invoke(command, [alert.name]).output == runbooks.page(page).text


def test_the_beginning_of_names_suggests_them() -> None:
    with pytest.raises(InputError, match="did you mean expired_handoff or expired_remote_read"):
        CliRunner().invoke(command, ["expired"], catch_exceptions=False)


@pytest.mark.parametrize(("begun", "completed"), [("expired", ["expired_handoff", "expired_remote_read"]), ("x", [])])
def test_the_shell_completes_names(begun: str, completed: list[str]) -> None:
    items = ShellComplete(command, {}, "runbook", "_COMPLETE").get_completions([], begun)
    assert [item.value for item in items] == completed


def test_an_unknown_cause_is_the_users_error() -> None:
    with pytest.raises(InputError, match="did you mean queueing"):
        CliRunner().invoke(command, ["queuing"], catch_exceptions=False)
