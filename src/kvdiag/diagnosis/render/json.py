"""The report as one JSON object (`kvdiag.report/1`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

from kvdiag.diagnosis.render.neutral import neutral_json

if TYPE_CHECKING:
    from kvdiag.diagnosis.render import Style
    from kvdiag.diagnosis.report import Report


def render(report: Report, style: Style) -> str:
    """Return the report as indented JSON; `per_turn` only when turns are asked for."""
    shown = report if style.turns else msgspec.structs.replace(report, per_turn=None)
    return document(shown)


def document(value: object) -> str:
    """Return `value` as one indented JSON document that is harmless when printed."""
    return neutral_json(msgspec.json.format(encoded(value)).decode()) + "\n"


def encoded(value: object) -> bytes:
    """Return `value` as compact JSON, also where a file name is not valid UTF-8."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), ensure_ascii=False).encode(errors="replace")
