"""`kvdiag runbook` prints pages as they are when piped and lists them otherwise."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from kvdiag import runbooks
from kvdiag.causes import CAUSES
from kvdiag.cli.runbook import command
from kvdiag.errors import InputError


def test_prints_the_page_unchanged_when_piped() -> None:
    result = CliRunner().invoke(command, ["suspect_kv"])
    assert result.output == runbooks.page("suspect_kv").text


def test_lists_every_page_with_its_meaning() -> None:
    output = CliRunner().invoke(command, []).output
    assert [name for name in runbooks.names() if name not in output] == []
    assert CAUSES["queueing"].meaning in output


def test_an_unknown_cause_is_the_users_error() -> None:
    with pytest.raises(InputError, match="did you mean queueing"):
        CliRunner().invoke(command, ["queuing"], catch_exceptions=False)
