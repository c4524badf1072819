"""The soak of the real pair, scaled down to half a minute: forks, edits, hang-ups, a frozen and a killed decode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks.soak import pair

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(900)  # decode starts twice
def test_every_turn_is_accounted_for_on_a_bad_day(tmp_path: Path) -> None:
    account = pair.run(30, tmp_path, print)
    assert [entry for entry in account.entries if not entry.right] == []
    assert account.entries[0].expected >= pair.AGENTS
