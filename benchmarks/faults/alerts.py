"""Which alerts of the shipped rules fire when what was recorded goes on for an hour, by `promtool`."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.faults.recording import INTERVAL_S

from kvdiag.dashboards import rules
from kvdiag.dashboards.alerts import alerts
from kvdiag.dashboards.settings import Settings
from kvdiag.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.faults.recording import Series

LASTS_S: Final = 3600
_FIRED: Final = re.compile(r"alertname: (\w+), time")


def fired(series: Iterable[Series]) -> list[str]:
    """Return the names of the alerts that fire.

    promtool is told to expect none, and names those that fire all the same.
    """
    names = [alert.name for alert in alerts(Settings())]
    test = {
        "interval": f"{INTERVAL_S}s",
        "input_series": [{"series": _selector(one), "values": _repeated(one)} for one in series],
        "alert_rule_test": [{"alertname": name, "eval_time": f"{LASTS_S}s", "exp_alerts": []} for name in names],
    }
    said = _promtool({"rule_files": ["rules.yaml"], "evaluation_interval": "30s", "tests": [test]})
    found = set(_FIRED.findall(said))
    return [name for name in names if name in found]


def _promtool(test: object) -> str:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rules.yaml").write_text(rules.to_yaml(rules.rule_file(Settings())))
        (Path(folder) / "test.json").write_text(json.dumps(test))
        command = ["promtool", "test", "rules", "test.json"]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
        except FileNotFoundError:
            raise UnavailableError("promtool is not installed; run: apt-get install prometheus") from None
    said = done.stdout + done.stderr
    if done.returncode and not _FIRED.search(said):
        raise RuntimeError(f"promtool failed: {said.strip()[-300:]}")
    return said


def _selector(series: Series) -> str:
    labels = ",".join(f"{name}={json.dumps(value)}" for name, value in series.labels.items())
    return f"{series.name}{{{labels}}}"


def _repeated(series: Series) -> str:
    """Return the samples in promtool's notation, over and over for as long as alerts are given."""
    times = LASTS_S // INTERVAL_S // len(series.values) + 1
    step = series.rise if series.counter else 0.0
    rounds = ((turn * step, value) for turn in range(times) for value in series.values)
    return " ".join("_" if value is None else f"{offset + value:g}" for offset, value in rounds)
