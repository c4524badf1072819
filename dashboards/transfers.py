"""Transfers: both directions, per pair, bytes, time, post time, failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvdiag.dashboards import vllm_series
from kvdiag.dashboards.board import Board, state
from kvdiag.dashboards.panels import BAD, Placed, Query, Row, graph_panel, heatmap_panel, table_panel
from kvdiag.dashboards.promql import DECODE, ENGINE, PREFILL, quantile, rate, ratio, with_peer

if TYPE_CHECKING:
    from kvdiag.dashboards.settings import Settings

_COLOURS = {"decode_to_prefill": "#73bf69", "prefill_to_decode": "#5794f2"}
_ABSENT = "Connector not enabled"
_QUIET = "No transfers, or connector not enabled (see top row)"


def board(settings: Settings) -> Board:
    """Return the board."""
    del settings
    return Board(
        "transfers",
        "kvdiag / Transfers",
        "Do the bytes move, in both directions, between every pair, as fast as they should?",
        (state(), _volume(), _time(), _set_up(), _pairs(), _stock()),
    )


def _volume() -> Row:
    return Row(
        (
            _bytes(),
            speed(),
            failures(),
        ),
        8,
    )


def _bytes() -> Placed:
    return Placed(
        graph_panel(
            "Bytes read",
            "decode_to_prefill is the read-back for later turns, prefill_to_decode the hand-off of every turn.",
            Query(rate("kvdiag_transfer_bytes_total", ENGINE, "direction"), "{{direction}}"),
            unit="Bps",
            absent=_ABSENT,
            colours=_COLOURS,
        ),
        8,
    )


def speed() -> Placed:
    """Return what says whether the fabric is slow."""
    return Placed(
        graph_panel(
            "Speed while transferring",
            "Bytes per second of transfer time: the fabric, not the load. A fall to about 1 GB/s or less means TCP.",
            Query(
                ratio(
                    rate("kvdiag_transfer_bytes_total", ENGINE, "direction"),
                    rate("kvdiag_transfer_seconds_sum", ENGINE, "direction"),
                ),
                "{{direction}}",
            ),
            unit="Bps",
            absent=_QUIET,
            colours=_COLOURS,
        ),
        8,
    )


def failures() -> Placed:
    """Return what NIXL could not move."""
    return Placed(
        graph_panel(
            "Failed transfers",
            "As NIXL reports them.",
            Query(rate("kvdiag_transfer_failures_total", ENGINE, "direction"), "{{direction}}"),
            unit="reqps",
            absent=_ABSENT,
            colours={"decode_to_prefill": BAD, "prefill_to_decode": "#ff9830"},
        ),
        8,
    )


def _time() -> Row:
    return Row(
        (
            _read_back(),
            _hand_off(),
            _heat(),
        ),
        8,
        "Time on the wire",
    )


def _read_back() -> Placed:
    return Placed(
        graph_panel(
            "Read-back time (decode to prefill)",
            "NIXL transfer time per request, recorded by prefill, which reads.",
            *_times("decode_to_prefill", PREFILL),
            unit="s",
            absent=_QUIET,
        ),
        8,
    )


def _hand_off() -> Placed:
    return Placed(
        graph_panel(
            "Hand-off time (prefill to decode)",
            "NIXL transfer time per request, recorded by decode, which reads.",
            *_times("prefill_to_decode", DECODE),
            unit="s",
            absent=_QUIET,
        ),
        8,
    )


def _heat() -> Placed:
    return Placed(
        heatmap_panel(
            "Read-back time, all requests",
            "A second band far above the first is a second transport or a second kind of host.",
            "sum by (le) (increase(kvdiag_transfer_seconds_bucket"
            f'{{{PREFILL},direction="decode_to_prefill"}}[$__rate_interval]))',
            unit="s",
            absent=_QUIET,
        ),
        8,
    )


def _set_up() -> Row:
    return Row(
        (
            _wait(),
            _post(),
            _descriptors(),
            _handshakes(),
        ),
        7,
        "Set-up",
    )


def _wait() -> Placed:
    return Placed(
        graph_panel(
            "Wait for the read, p95",
            "From claiming the tokens until they had arrived; much above the transfer time: handshake or polling.",
            _p95("kvdiag_read_wait_seconds"),
            unit="s",
            absent=_QUIET,
            colours=_COLOURS,
        ),
        6,
    )


def _post() -> Placed:
    return Placed(
        graph_panel(
            "Post time, p95",
            "Before any byte moves; grows with the number of descriptors.",
            _p95("kvdiag_transfer_post_seconds"),
            unit="s",
            absent=_QUIET,
            colours=_COLOURS,
        ),
        6,
    )


def _descriptors() -> Placed:
    return Placed(
        graph_panel(
            "Descriptors per transfer",
            "Separate memory regions; many small ones make a fast fabric slow.",
            Query(
                ratio(
                    rate("kvdiag_transfer_descriptors_total", ENGINE, "direction"),
                    rate("kvdiag_transfer_seconds_count", ENGINE, "direction"),
                ),
                "{{direction}}",
            ),
            unit="short",
            absent=_QUIET,
            colours=_COLOURS,
        ),
        6,
    )


def _handshakes() -> Placed:
    return Placed(
        graph_panel(
            "Handshakes with a new peer, p95",
            "Once per pair; later ones mean that engines restart.",
            Query(quantile(0.95, "kvdiag_handshake_seconds", ENGINE), "p95"),
            unit="s",
            absent="No new peer, or connector not enabled",
        ),
        6,
    )


def _pairs() -> Row:
    def total(name: str) -> str:
        by = "direction, instance, peer"
        return f"sum by ({by}) (increase(kvdiag_peer_{name}_total{{{ENGINE}}}[$__range]))"

    done, moved, spent = total("transfers"), total("transfer_bytes"), total("transfer_seconds")
    columns = {
        "Transfers": (f"{done} > 0", "short"),
        "Bytes": (f"{moved} > 0", "bytes"),
        "Mean time": (f"{spent} / ({done} > 0)", "s"),
        "Speed": (f"{moved} / ({spent} > 0)", "Bps"),
        "Failed": (f"({total('transfer_failures')} or 0 * {done})", "short"),
    }
    return Row(
        (
            Placed(
                table_panel(
                    "Every pair",
                    "In the chosen range. The reader is the engine that recorded it. One slow host shows in several rows, "
                    "a slow fabric in all.",
                    {heading: (with_peer(expr), unit) for heading, (expr, unit) in columns.items()},
                    labels={"direction": "Direction", "instance": "Reader", "engine": "Read from"},
                    hidden=("peer",),
                    absent=_QUIET,
                    sort="Transfers",
                ),
                24,
            ),
        ),
        8,
        "Per pair",
    )


def _stock() -> Row:
    return Row(
        (
            _stock_bytes(),
            _stock_time(),
            _stock_failures(),
        ),
        7,
        "vLLM's own series (stock connectors too)",
    )


def _stock_bytes() -> Placed:
    return Placed(
        graph_panel(
            "vLLM: bytes read, by engine",
            "vLLM's own counter, without direction: on prefill it is the read-back, on decode the hand-off.",
            Query(
                vllm_series.NIXL_BYTES.query(lambda name: rate(name, ENGINE, "instance")),
                "{{instance}}",
            ),
            unit="Bps",
            absent="No NIXL series from vLLM (0.14 or older, or no connector)",
        ),
        8,
    )


def _stock_time() -> Placed:
    return Placed(
        graph_panel(
            "vLLM: transfer time p95, by engine",
            "vLLM's own histogram; it tops out at 5 s.",
            Query(
                vllm_series.NIXL_TRANSFER_TIME.query(
                    lambda name: quantile(0.95, name.removesuffix("_bucket"), ENGINE, "instance")
                ),
                "{{instance}}",
            ),
            unit="s",
            absent="No transfers, or no NIXL series from vLLM",
        ),
        8,
    )


def _stock_failures() -> Placed:
    return Placed(
        graph_panel(
            "vLLM: failed and expired, by engine",
            "vLLM counts three things as expired; a conversation that ended on decode is one of them and harmless.",
            Query(
                vllm_series.NIXL_FAILED.query(lambda name: rate(name, ENGINE, "instance")),
                "failed {{instance}}",
            ),
            Query(
                vllm_series.NIXL_EXPIRED.query(lambda name: rate(name, ENGINE, "instance")),
                "expired {{instance}}",
            ),
            unit="reqps",
            absent="No NIXL series from vLLM (0.14 or older, or no connector)",
        ),
        8,
    )


def _times(direction: str, selector: str) -> tuple[Query, ...]:
    chosen = f'{selector},direction="{direction}"'
    return tuple(
        Query(quantile(q, "kvdiag_transfer_seconds", chosen), f"p{q * 100:g}", exemplar=q == 0.95)
        for q in (0.5, 0.95, 0.99)
    )


def _p95(histogram: str) -> Query:
    return Query(quantile(0.95, histogram, ENGINE, "direction"), "{{direction}}")
