"""Turns: TTFT by turn, outcome, arm and prompt length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvdiag.dashboards.board import Board, state
from kvdiag.dashboards.overview import DUE, LATER, REUSED
from kvdiag.dashboards.panels import CAUSE_COLOURS, Placed, Query, Row, bar_panel, graph_panel, heatmap_panel
from kvdiag.dashboards.promql import ENGINE, ROUTER, mean, quantile, rate, ratio

if TYPE_CHECKING:
    from kvdiag.dashboards.settings import Settings

_TURN_COLOURS = {"1": "#5794f2", "2-4": "#73bf69", "5-9": "#fade2a", "10+": "#ff9830"}
_TTFT = "kvdiag_turn_ttft_seconds"


def board(settings: Settings) -> Board:
    """Return the board."""
    return Board(
        "turns",
        "kvdiag / Turns",
        "Which turns are slow: by number, outcome, arm of the experiment and prompt length?",
        (state(), _by_turn(settings), _by_outcome(), _by_prompt(), _where()),
    )


def _by_turn(settings: Settings) -> Row:
    return Row(
        (
            _p95_by_turn(settings),
            _median_by_turn(),
            _heat(),
        ),
        9,
        "By turn number",
    )


def _p95_by_turn(settings: Settings) -> Placed:
    return Placed(
        graph_panel(
            "TTFT by turn, p95",
            "With working reuse later turns are not slower than first ones, however long the conversation.",
            Query(quantile(0.95, _TTFT, ROUTER, "turn"), "{{turn}}", exemplar=True),
            unit="s",
            limit=settings.ttft_objective,
            colours=_TURN_COLOURS,
        ),
        8,
    )


def _median_by_turn() -> Placed:
    return Placed(
        graph_panel(
            "TTFT by turn, median",
            "Turn numbers in groups.",
            Query(quantile(0.5, _TTFT, ROUTER, "turn"), "{{turn}}"),
            unit="s",
            colours=_TURN_COLOURS,
        ),
        8,
    )


def _heat() -> Placed:
    return Placed(
        heatmap_panel(
            "TTFT of later turns",
            "Two bands mean two populations: reused and not reused.",
            f"sum by (le) (increase({_TTFT}_bucket{{{LATER}}}[$__rate_interval]))",
            unit="s",
            absent="No traffic, or router not scraped (see top row)",
        ),
        8,
    )


def _by_outcome() -> Row:
    return Row(
        (
            _ttft_by_cause(),
            _arms(),
            _reused(),
        ),
        9,
        "By outcome",
    )


def _ttft_by_cause() -> Placed:
    return Placed(
        bar_panel(
            "TTFT of later turns by cause, mean",
            "In the chosen range; the mean, because rare causes have too few turns for a quantile.",
            Query(f"sort_desc({mean(_TTFT, LATER, 'cause', window='$__range')})", "{{cause}}"),
            unit="s",
            absent="No traffic, or router not scraped (see top row)",
            colours=CAUSE_COLOURS,
            link="/d/kvdiag-runbook-${__field.labels.cause}",
        ),
        12,
    )


def _arms() -> Placed:
    return Placed(
        graph_panel(
            "Reuse against hold-out, mean TTFT",
            "Conversations are assigned at random, so the gap is what reuse saves. One line only: no hold-out configured.",
            Query(mean(_TTFT, LATER, "arm"), "{{arm}}"),
            unit="s",
            colours={"reuse": CAUSE_COLOURS["remote_hit"], "holdout": CAUSE_COLOURS["first_turn"]},
        ),
        6,
    )


def _reused() -> Placed:
    return Placed(
        graph_panel(
            "Later turns that reused",
            "By turn group; falling with the turn number: histories change or gaps grow.",
            Query(
                ratio(rate("kvdiag_turns_total", REUSED, "turn"), rate("kvdiag_turns_total", DUE, "turn")),
                "{{turn}}",
            ),
            unit="percentunit",
            colours=_TURN_COLOURS,
        ),
        6,
    )


def _by_prompt() -> Row:
    return Row(
        (
            _reused_by_prompt(),
            _computed_by_prompt(),
            _kept(),
        ),
        8,
        "By prompt",
    )


def _reused_by_prompt() -> Placed:
    return Placed(
        graph_panel(
            "Reused: TTFT by prompt length, median",
            "Should hardly grow with the prompt.",
            Query(_median_of("yes"), "{{prompt}}"),
            unit="s",
        ),
        8,
    )


def _computed_by_prompt() -> Placed:
    return Placed(
        graph_panel(
            "Not reused: TTFT by prompt length, median",
            "Grows with the prompt; the distance to the panel on the left is what is at stake.",
            Query(_median_of("no"), "{{prompt}}"),
            unit="s",
        ),
        8,
    )


def _kept() -> Placed:
    kept = ratio(
        rate("kvdiag_response_tokens_total", f'{ENGINE},kept="yes"'), rate("kvdiag_response_tokens_total", ENGINE)
    )
    return Placed(
        graph_panel(
            "Last response kept by the next prompt",
            "Share of generated tokens that come back unchanged. Low: the template strips reasoning or text "
            "re-tokenises differently; only the part before the response can be reused.",
            Query(kept, "kept"),
            unit="percentunit",
            absent="No later turns, or connector not enabled (see top row)",
        ),
        8,
    )


def _where() -> Row:
    return Row(
        (
            _legs(),
            _numbers(),
        ),
        8,
        "Where the time goes",
    )


def _legs() -> Placed:
    return Placed(
        graph_panel(
            "Where the time goes, mean",
            "The prefill call (queue, read-back and compute) and the hand-off to decode's first token.",
            Query(mean("kvdiag_prefill_seconds", ROUTER), "prefill"),
            Query(mean("kvdiag_handoff_seconds", ROUTER), "hand-off to first token"),
            unit="s",
            stacked=True,
            colours={"prefill": "#73bf69", "hand-off to first token": "#5794f2"},
        ),
        12,
    )


def _numbers() -> Placed:
    return Placed(
        graph_panel(
            "Turns by number",
            "Only group 1 although clients hold conversations: they do not identify them.",
            Query(rate("kvdiag_turns_total", ROUTER, "turn"), "{{turn}}"),
            unit="reqps",
            stacked=True,
            colours=_TURN_COLOURS,
            absent="Router not scraped",
        ),
        12,
    )


def _median_of(reused: str) -> str:
    return quantile(0.5, "kvdiag_turn_ttft_by_prompt_seconds", f'{ROUTER},reused="{reused}"', "prompt")
