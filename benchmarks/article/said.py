"""What kvdiag itself says of the experiment's logs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def _ask(verb: str, logs: Path, *more: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "kvdiag", verb, str(logs), "--format", "json", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if not done.stdout:
        raise RuntimeError(f"kvdiag {verb} {logs} said nothing: {done.stderr.strip()[-300:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def threshold(logs: Path) -> str:
    """Return the recommended kv_recompute_threshold with its reason."""
    advice = {item["setting"]: item for item in _ask("tune", logs)["advice"]}["kv_recompute_threshold"]
    value = "no value" if advice["value"] is None else f"**{advice['value']} {advice['unit']}**"
    return f"{value} ({advice['why']})."


def comparison(logs: Path) -> list[str]:
    """Return off against on (`kvdiag compare`), and the causes that `kvdiag classify` gives the turns of each arm."""
    rows = _ask("compare", logs)["rows"]
    lines = ["| `kvdiag compare` | off | on | change |", "|---|---|---|---|"]
    lines += [f"| {row['measure']} | {_value(row, 'a')} | {_value(row, 'b')} | {_change(row)} |" for row in rows]
    report = _ask("classify", logs, "--turns")
    counts = Counter(turn["cause"] for turn in report["per_turn"] if not _withheld(turn))
    causes = ", ".join(f"{count} {cause}" for cause, count in counts.most_common())
    found = [_finding(finding) for finding in report["findings"] if not _withheld(finding)]
    said = f"What `kvdiag classify` says of the turns with reuse on: {causes}; findings: {', '.join(found) or 'none'}."
    return [*lines, "", said]


def _finding(finding: dict[str, Any]) -> str:
    detail = f"/{finding['detail']}" if finding["detail"] else ""
    return f"{finding['cause']}{detail} ({finding['confidence']}, {finding['turns']} turns)"


def _withheld(told: dict[str, Any]) -> bool:
    return told.get("detail") == "holdout"


def _value(row: dict[str, Any], side: str) -> str:
    value = row[side]
    if value is None:
        return ""
    return f"{value:.0%}" if row["unit"] == "share" else f"{value * 1e3:.0f} ms"


def _change(row: dict[str, Any]) -> str:
    if row["low"] is None:
        return str(row["change"])
    scale, unit = (100, "points") if row["unit"] == "share" else (1e3, "ms")
    return f"{row['change']} ({row['low'] * scale:+.0f} to {row['high'] * scale:+.0f} {unit})"
