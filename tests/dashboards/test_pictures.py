"""Every board drawn by Grafana's own components in Chromium: no exception, no empty panel while there is data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from tests.dashboards.conftest import World

VIEWER: Final = Path(__file__).parent / "viewer"
DASHBOARDS: Final = Path(__file__).parents[2] / "dashboards"
BOARDS: Final = [*sorted((DASHBOARDS / "boards").glob("*.json")), DASHBOARDS / "runbooks" / "expired_remote_read.json"]


def draw(world: World, scenario: str, boards: list[Path], out: Path) -> list[dict[str, Any]]:
    """Take pictures; `KVDIAG_PICTURES` names a folder in which to keep them."""
    if not (VIEWER / "dist" / "bundle.js").exists():
        pytest.fail("the dashboard viewer is not built; run scripts/setup (needs Node.js 20 or newer)")
    out = Path(os.environ.get("KVDIAG_PICTURES", out)) / scenario
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(VIEWER / "shot.py"), "--prometheus", world.server.url, "--to", str(int(world.now))]
    command += ["--job", f"{scenario}-.*", "--out", str(out), *map(str, boards)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_boards_draw_with_data(world: World, tmp_path: Path) -> None:
    drawn = draw(world, "fault", BOARDS, tmp_path)
    assert [one["dashboard"] for one in drawn] == [board.name for board in BOARDS]
    for one in drawn:
        asked = [panel["title"] for panel in json.loads(_board(one["dashboard"]).read_text())["panels"]]
        assert one["noise"] == []
        assert [panel for panel in one["panels"] if panel.get("error") or panel["empty"]] == []
        assert {panel["title"] for panel in one["panels"]} <= set(asked)
        assert len(one["panels"]) > 5
        # A blank page of this size takes about 10 kB.
        assert Path(one["picture"]).stat().st_size > 40_000


def test_an_idle_overview_draws_words_instead_of_graphs(world: World, tmp_path: Path) -> None:
    (drawn,) = draw(world, "idle", [DASHBOARDS / "boards" / "overview.json"], tmp_path)
    assert drawn["noise"] == []
    assert [panel for panel in drawn["panels"] if panel.get("error")] == []
    assert "How later turns ended" in {panel["title"] for panel in drawn["panels"] if panel["empty"]}


def _board(name: str) -> Path:
    return next(board for board in BOARDS if board.name == name)
