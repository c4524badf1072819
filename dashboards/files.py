"""Everything that is written to disk or pushed, by relative path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvdiag.dashboards import cause, overview, provisioning, retention, router, rules, transfers, turns
from kvdiag.dashboards.board import Board, document, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvdiag.dashboards.settings import Settings

BOARDS: Final = (overview.board, turns.board, transfers.board, retention.board, router.board)


def boards(settings: Settings, pages: Mapping[str, str]) -> tuple[Board, ...]:
    """Return every board; `pages` maps a runbook's name to its Markdown."""
    return (*(board(settings) for board in BOARDS), *cause.boards(pages))


def documents(settings: Settings, pages: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return every board as Grafana's JSON by its path."""
    return {_path(board): document(board) for board in boards(settings, pages)}


def texts(settings: Settings, pages: Mapping[str, str]) -> dict[str, str]:
    """Return every file's text by its path."""
    return {path: to_json(board) for path, board in documents(settings, pages).items()} | {
        "kvdiag.rules.yaml": rules.to_yaml(rules.rule_file(settings)),
        "kvdiag-genai.rules.yaml": rules.to_yaml(rules.genai_file()),
        "prometheus.yaml": rules.to_yaml(provisioning.prometheus()),
        "provisioning/datasources/kvdiag.yaml": rules.to_yaml(provisioning.data_sources()),
        "provisioning/dashboards/kvdiag.yaml": rules.to_yaml(provisioning.dashboard_providers()),
    }


def _path(board: Board) -> str:
    if board.name.startswith(cause.PREFIX):
        return f"runbooks/{board.name.removeprefix(cause.PREFIX)}.json"
    return f"boards/{board.name}.json"
