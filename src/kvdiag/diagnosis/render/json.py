"""The report as one JSON object (`kvdiag.report/1`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvdiag.diagnosis.render.neutral import neutral_json

if TYPE_CHECKING:
    from kvdiag.diagnosis.render import Style
    from kvdiag.diagnosis.report import Report


def render(report: Report, style: Style) -> str:
    """Return the report as indented JSON; `per_turn` only when turns are asked for."""
    shown = report if style.turns else msgspec.structs.replace(report, per_turn=None)
    return neutral_json(msgspec.json.format(msgspec.json.encode(shown)).decode()) + "\n"
