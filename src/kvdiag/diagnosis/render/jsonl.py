"""The report as JSON lines: one record a line, its kind under `record`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvdiag.diagnosis.render.json import encoded
from kvdiag.diagnosis.render.neutral import neutral_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvdiag.diagnosis.render import Style
    from kvdiag.diagnosis.report import Report


def render(report: Report, style: Style) -> str:
    """Return what limits the report, if anything, verdict, window, counts, findings, averages, inputs and, if wanted, turns."""
    lines = (encoded({"schema": report.schema, "record": kind} | fields) for kind, fields in _records(report, style))
    return neutral_json("".join(line.decode() + "\n" for line in lines))


def _records(report: Report, style: Style) -> Iterator[tuple[str, dict[str, object]]]:
    if report.interrupted or report.without_row:
        yield "limits", {"interrupted": report.interrupted, "without_row": report.without_row}
    groups: tuple[tuple[str, Sequence[msgspec.Struct]], ...] = (
        ("verdict", (report.verdict,)),
        ("window", (report.window,)),
        ("turns", (report.turns,)),
        ("finding", report.findings),
        ("average", report.latency.averages),
        ("not_evaluated", report.not_evaluated),
        ("input", report.inputs),
        ("turn", (report.per_turn or ()) if style.turns else ()),
    )
    for kind, structs in groups:
        for struct in structs:
            yield kind, msgspec.to_builtins(struct)
