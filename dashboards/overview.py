"""Overview: readable in ten seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvdiag.causes import CAUSES
from kvdiag.dashboards.board import Board, link, state
from kvdiag.dashboards.panels import (
    BAD,
    CAUSE_COLOURS,
    GOOD,
    MUTED,
    WARN,
    ZERO_IS_GOOD,
    Placed,
    Query,
    Row,
    bar_panel,
    graph_panel,
    stat_panel,
    table_panel,
)
from kvdiag.dashboards.promql import ENGINE, ROUTER, increase, mean, or_idle, quantile, rate, ratio

if TYPE_CHECKING:
    from kvdiag.dashboards.settings import Settings

LATER = f'{ROUTER},turn!="1"'
REUSED = f'{LATER},cause=~"remote_hit|local_hit"'
DUE = f'{LATER},detail!="holdout"'
"""Later turns that were to reuse; only series with a `detail` can leave out what was withheld on purpose."""
NOT_REUSED = f'{DUE},cause!~"remote_hit|local_hit"'
_UNPLANNED = f'{ENGINE},detail!="holdout"'
_HELD_OUT = f'{LATER},arm="holdout"'
_REUSING = f'{LATER},arm="reuse"'
_WITNESS = f"kvdiag_router_handles{{{ROUTER}}}"
_RUNBOOK = "/d/kvdiag-runbook-${__data.fields.Cause}?${__url_time_range}&${datasource:queryparam}"
_URGENCY = {"page": 3, "ticket": 2, "info": 1}
"""Numbers, so that a table can sort by them; shown as words."""
_FIRING = " or ".join(
    f'label_replace({rank} * max by (alertname, cause) (ALERTS{{alertstate="firing",alertname=~"Kvdiag.*",'
    f'severity="{severity}"}}), "cause", "triage", "cause", "")'
    for severity, rank in _URGENCY.items()
)
_TOKEN_COLOURS = {
    "read from decode": CAUSE_COLOURS["remote_hit"],
    "prefill's own cache": CAUSE_COLOURS["local_hit"],
    "computed, new": CAUSE_COLOURS["first_turn"],
    "computed, lost": CAUSE_COLOURS["expired_remote_read"],
}


def board(settings: Settings) -> Board:
    """Return the board."""
    return Board(
        "overview",
        "kvdiag / Overview",
        "Is reuse working, what does it save, and what is lost to which cause?",
        (state(), _numbers(settings), _outcomes(), _time_and_tokens(settings), _to_do()),
    )


def _numbers(settings: Settings) -> Row:
    return Row((_reused(), _within(settings), _saved(), _lost(), _suspect()), 4)


def _reused() -> Placed:
    reused = or_idle(
        ratio(rate("kvdiag_turns_total", REUSED, window="5m"), rate("kvdiag_turns_total", DUE, window="5m")), _WITNESS
    )
    return Placed(
        stat_panel(
            "Later turns that reused",
            "Share of turns after the first whose history came from decode or from prefill's own cache, last 5 min.",
            Query(reused),
            unit="percentunit",
            steps=((None, BAD), (0.5, WARN), (0.8, GOOD)),
            decimals=0,
            link=link("turns"),
        ),
        5,
    )


def _within(settings: Settings) -> Placed:
    within = or_idle(
        ratio(
            rate("kvdiag_turn_ttft_seconds_bucket", f'{LATER},le="{settings.le}"', window="5m"),
            rate("kvdiag_turn_ttft_seconds_count", LATER, window="5m"),
        ),
        _WITNESS,
    )
    return Placed(
        stat_panel(
            f"Later turns within {settings.ttft_objective:g} s",
            f"Share of later turns whose first token came within the objective; target {settings.ttft_target:.0%}.",
            Query(within),
            unit="percentunit",
            steps=((None, BAD), (settings.ttft_target - 0.1, WARN), (settings.ttft_target, GOOD)),
            decimals=0,
            link=link("turns"),
        ),
        5,
    )


def _saved() -> Placed:
    saved = or_idle(
        f"{mean('kvdiag_turn_ttft_seconds', _HELD_OUT, window='1h')} - "
        f"{mean('kvdiag_turn_ttft_seconds', _REUSING, window='1h')}",
        _WITNESS,
    )
    return Placed(
        stat_panel(
            "TTFT saved per later turn",
            "Mean TTFT of conversations held out from reuse minus that of all others, last hour: measured, not "
            "estimated. Needs a hold-out share in the router's configuration.",
            Query(saved),
            unit="s",
            steps=((None, WARN), (1e-9, GOOD)),
            idle="No hold-out",
            decimals=2,
            link=link("turns"),
        ),
        5,
    )


def _lost() -> Placed:
    lost = or_idle(
        ratio(
            rate("kvdiag_prompt_tokens_total", f'{ROUTER},source="lost"', window="5m"),
            rate("kvdiag_prompt_tokens_total", f'{ROUTER},source=~"local|remote|computed"', window="5m"),
        ),
        _WITNESS,
    )
    return Placed(
        stat_panel(
            "Prompt tokens lost",
            "Share of prompt tokens that decode still held and prefill computed all the same, last 5 min.",
            Query(lost),
            unit="percentunit",
            steps=((None, GOOD), (0.1, WARN), (0.3, BAD)),
            decimals=0,
        ),
        5,
    )


def _suspect() -> Placed:
    suspect = increase("kvdiag_expiries_total", f'{ENGINE},kind="read_after_release"')
    return Placed(
        stat_panel(
            "Suspect answers",
            "Reads of blocks that had been freed, in the chosen range. Not 0: answers may be wrong.",
            Query(suspect),
            unit="short",
            steps=ZERO_IS_GOOD,
            absent="Connector not enabled",
            decimals=0,
            link="/d/kvdiag-runbook-suspect_kv",
            sparkline=False,
        ),
        4,
    )


def _outcomes() -> Row:
    return Row(
        (
            _ended(),
            _lost_by_cause(),
        ),
        9,
    )


def _ended() -> Placed:
    return Placed(
        graph_panel(
            "How later turns ended",
            "Turns per second by cause. Greens reused; everything else computed tokens that decode held.",
            # Two queries, so that what reused is the floor of the stack.
            Query(f"{rate('kvdiag_turns_total', REUSED, 'cause')} > 0", "{{cause}}"),
            Query(f"{rate('kvdiag_turns_total', NOT_REUSED, 'cause')} > 0", "{{cause}}"),
            unit="reqps",
            stacked=True,
            colours=CAUSE_COLOURS,
            link=link("turns"),
        ),
        14,
    )


def _lost_by_cause() -> Placed:
    return Placed(
        bar_panel(
            "Tokens lost by cause",
            "Tokens held on decode and computed again, in the chosen range; the eight largest.",
            Query(
                f"topk(8, {increase('kvdiag_lost_tokens_total', _UNPLANNED, 'cause')} > 0)",
                "{{cause}}",
            ),
            unit="short",
            absent="Nothing lost, or connector not enabled (see top row)",
            colours=CAUSE_COLOURS,
            link="/d/kvdiag-runbook-${__field.labels.cause}",
        ),
        10,
    )


def _time_and_tokens(settings: Settings) -> Row:
    return Row(
        (
            _ttft(settings),
            _tokens(),
        ),
        8,
    )


def _ttft(settings: Settings) -> Placed:
    other = f'{LATER},cause!~"remote_hit|local_hit|below_threshold",arm="reuse"'
    return Placed(
        graph_panel(
            "TTFT of later turns, median",
            "Reused against not reused against held out. Diamonds are traces.",
            Query(quantile(0.5, "kvdiag_turn_ttft_seconds", f'{REUSED},arm="reuse"'), "reused", exemplar=True),
            Query(quantile(0.5, "kvdiag_turn_ttft_seconds", other), "not reused", exemplar=True),
            Query(quantile(0.5, "kvdiag_turn_ttft_seconds", f'{LATER},arm="holdout"'), "held out"),
            unit="s",
            limit=settings.ttft_objective,
            colours={"reused": GOOD, "not reused": BAD, "held out": CAUSE_COLOURS["first_turn"]},
            link=link("turns"),
        ),
        12,
    )


def _tokens() -> Placed:
    def tokens(source: str) -> str:
        return rate("kvdiag_prompt_tokens_total", f'{ROUTER},source="{source}"')

    return Placed(
        graph_panel(
            "Prompt tokens by where their KV came from",
            "Tokens per second. Red is work that reuse should have spared.",
            Query(tokens("remote"), "read from decode"),
            Query(tokens("local"), "prefill's own cache"),
            Query(f"clamp_min({tokens('computed')} - {tokens('lost')}, 0)", "computed, new"),
            Query(tokens("lost"), "computed, lost"),
            unit="short",
            stacked=True,
            colours=_TOKEN_COLOURS,
            absent="Router not scraped",
        ),
        12,
    )


def _to_do() -> Row:
    return Row(
        (
            _faults(),
            _firing(),
        ),
        7,
    )


def _faults() -> Placed:
    faults = "|".join(cause.name for cause in CAUSES.values() if cause.kind == "fault")
    selector = f'{ROUTER},detail!="holdout",cause=~"{faults}"'
    turns = increase("kvdiag_turns_total", selector, "cause, detail")
    lost = increase("kvdiag_lost_tokens_total", f'{_UNPLANNED},cause=~"{faults}"', "cause, detail")
    return Placed(
        table_panel(
            "What to mend first",
            "Faults in the chosen range; the cause opens its runbook.",
            {"Turns": (f"{turns} > 0", "short"), "Tokens lost": (f"{lost} > 0", "short")},
            labels={"cause": "Cause", "detail": "Detail"},
            absent="No faults, or router not scraped (see top row)",
            links={"Cause": ("Runbook", _RUNBOOK)},
            sort="Turns",
        ),
        14,
    )


def _firing() -> Placed:
    return Placed(
        table_panel(
            "Firing alerts",
            "kvdiag's own alerts that fire now.",
            {"Severity": (_FIRING, "short")},
            labels={"alertname": "Alert", "cause": "Runbook"},
            absent="No alert fires, or the rules are not loaded",
            links={"Runbook": ("Runbook", _RUNBOOK.replace("Cause", "Runbook"))},
            sort="Severity",
            words={"Severity": {3: ("page", BAD), 2: ("ticket", WARN), 1: ("info", MUTED)}},
        ),
        10,
    )
