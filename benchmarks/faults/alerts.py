"""Which alerts of the shipped rules fire when what was recorded goes on for an hour, by `promtool`.

Where a scenario tells its usual state apart, an hour of that comes first: some alerts compare with the day before.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.faults.recording import INTERVAL_S, last

from kvdiag.dashboards import rules
from kvdiag.dashboards.alerts import alerts
from kvdiag.dashboards.settings import Settings
from kvdiag.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.faults.recording import Series

LASTS_S: Final = 3600
_FIRED: Final = re.compile(r"alertname: (\w+), time")


def fired(series: Sequence[Series]) -> list[str]:
    """Return the names of the alerts that fire.

    promtool is told to expect none, and names those that fire all the same.
    """
    names = [alert.name for alert in alerts(Settings())]
    at = f"{max(_calm_s(one) for one in series) + LASTS_S}s"
    test = {
        "interval": f"{INTERVAL_S}s",
        "input_series": [{"series": _selector(one), "values": _repeated(one)} for one in series],
        "alert_rule_test": [{"alertname": name, "eval_time": at, "exp_alerts": []} for name in names],
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


def _calm_s(series: Series) -> int:
    return _times(series.calm) * series.calm * INTERVAL_S


def _times(samples: int) -> int:
    """Return how often so many samples are repeated to last for the hour."""
    return LASTS_S // INTERVAL_S // samples + 1 if samples else 0


def _repeated(series: Series) -> str:
    """Return the samples in promtool's notation: the usual ones over and over, then those of the fault."""
    before, during = series.values[: series.calm], series.values[series.calm :]
    usual = last(before) if series.counter else 0.0
    step = series.rise - usual if series.counter else 0.0
    begun = (_times(len(before)) - 1) * usual if before else 0.0
    shown = [*_rounds(before, 0.0, usual), *_rounds(during, begun, step)]
    return " ".join("_" if value is None else f"{value:g}" for value in shown)


def _rounds(values: Sequence[float | None], begun: float, step: float) -> Iterator[float | None]:
    for turn in range(_times(len(values))):
        yield from (None if value is None else begun + turn * step + value for value in values)
