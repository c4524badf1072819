"""A board per runbook page: the text beside the cause's live numbers, so that an alert's link cannot lead nowhere."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kvdiag.causes import CAUSES
from kvdiag.dashboards import retention, router, transfers
from kvdiag.dashboards.board import TAG, UID_PREFIX, Board, state
from kvdiag.dashboards.panels import CAUSE_COLOURS, Placed, Query, Row, graph_panel, text_panel
from kvdiag.dashboards.promql import ENGINE, ROUTER, mean, named, rate, ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIX: Final = "runbook-"
MEASURED: Final[dict[str, Callable[[], Placed]]] = {
    "expired_handoff": retention.expiries,
    "suspect_kv": retention.expiries,
    "transfer_failed": transfers.failures,
    "slow_transfer": transfers.speed,
    "queueing": retention.queue_time,
    "kv_pressure": retention.share_held,
    "router_overhead": router.own_time,
}
"""What shows these causes where no turn is counted with them: a router sees that a turn was slow, not yet why. Only
`kvdiag export`, which has all logs, counts turns with them."""
_ROWS_A_LINE: Final = 0.45
"""Grid rows that a line of Markdown takes, measured on the longest page."""
_STEP: Final = re.compile(r"^(\d+)\. (?=.*\n\n```)", re.MULTILINE)
"""A numbered step before a code block: Grafana's sanitiser drops a list's start, so that every step would be the first."""
_PAGE_LINK: Final = re.compile(r"\]\((\w+)\.md\)")


def boards(pages: Mapping[str, str]) -> tuple[Board, ...]:
    """Return one board per page; `pages` maps a runbook's name to its Markdown."""
    return tuple(_board(name, text) for name, text in pages.items())


def _board(name: str, text: str) -> Board:
    cause = CAUSES.get(name)
    linked = _STEP.sub(r"**\1.** ", _PAGE_LINK.sub(rf"](/d/{UID_PREFIX}{PREFIX}\1)", text))
    live = (_live(name),) if cause else ()
    height = math.ceil(text.count("\n") * _ROWS_A_LINE) + 3
    return Board(
        PREFIX + name,
        f"kvdiag / Runbook / {name}",
        cause.meaning if cause else "Which cause is it?",
        (state(), *live, Row((Placed(text_panel("Runbook", linked), 24),), height)),
        (TAG + "-runbook",),
    )


def _live(cause: str) -> Row:
    return Row(
        (
            _turns(cause),
            replace(MEASURED[cause](), width=6) if cause in MEASURED else _share(cause),
            _tokens(cause),
            _ttft(cause),
        ),
        7,
    )


def _turns(cause: str) -> Placed:
    selector = f'{ROUTER},cause="{cause}"'
    return Placed(
        graph_panel(
            "Turns with this cause",
            "By detail.",
            Query(named(rate("kvdiag_turns_total", selector, "detail"), "detail"), "{{detail}}"),
            unit="reqps",
            stacked=True,
            absent="Router not scraped",
            colours={"no detail": CAUSE_COLOURS[cause]},
        ),
        6,
    )


def _share(cause: str) -> Placed:
    selector = f'{ROUTER},cause="{cause}"'
    return Placed(
        graph_panel(
            "Share of all turns",
            "What the alert compares with its budget, without its traffic floor.",
            Query(ratio(rate("kvdiag_turns_total", selector), rate("kvdiag_turns_total", ROUTER)), cause),
            unit="percentunit",
            colours={cause: CAUSE_COLOURS[cause]},
        ),
        6,
    )


def _tokens(cause: str) -> Placed:
    return Placed(
        graph_panel(
            "Tokens lost to it",
            "Held on decode, computed again.",
            Query(
                named(rate("kvdiag_lost_tokens_total", f'{ENGINE},cause="{cause}"', "detail"), "detail"),
                "{{detail}}",
            ),
            unit="short",
            stacked=True,
            absent="Connector not enabled",
        ),
        6,
    )


def _ttft(cause: str) -> Placed:
    selector = f'{ROUTER},cause="{cause}"'
    return Placed(
        graph_panel(
            "TTFT of these turns, mean",
            "Against all turns.",
            Query(mean("kvdiag_turn_ttft_seconds", selector), cause),
            Query(mean("kvdiag_turn_ttft_seconds", ROUTER), "all turns"),
            unit="s",
            colours={cause: CAUSE_COLOURS[cause]},
        ),
        6,
    )
