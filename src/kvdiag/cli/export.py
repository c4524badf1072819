"""`kvdiag export`: metrics for deployments that run neither our connector nor our router."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING

import click
from prometheus_client import CollectorRegistry, disable_created_metrics, start_http_server

from kvdiag.diagnosis.follow import follow
from kvdiag.diagnosis.options import Options
from kvdiag.errors import InputError
from kvdiag.exporters.observed import TurnCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_EXAMPLES = """\b
Examples:
  kvdiag export logs/ --listen 0.0.0.0:9464"""


@click.command("export", epilog=_EXAMPLES)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--listen", default="127.0.0.1:9464", show_default=True, metavar="HOST:PORT", help="Where to serve /metrics."
)
@click.option(
    "--settle",
    type=click.FloatRange(min=0),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="Count a turn when the logs have said nothing new about it for so long.",
)
def command(paths: tuple[str, ...], listen: str, settle: float) -> None:
    """Follow logs and serve what they tell as the same kvdiag_* metrics.

    PATH is what `kvdiag classify` takes: prefill, decode and router logs, or directories of them. Turns that are in the
    logs already are not counted. Ctrl-C or SIGTERM ends it.
    """
    host, port = _address(listen)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    counter = TurnCounter(registry, settle_s=settle)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise InputError(f"{listen} cannot be listened on ({error.strerror}); choose another with --listen") from None
    where = f"http://{host}:{server.server_port}/metrics"
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.suppress(KeyboardInterrupt):  # the way to end it
            count(paths, counter, ready=lambda: click.echo(f"kvdiag: metrics on {where}", err=True))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def count(
    paths: Sequence[str],
    counter: TurnCounter,
    *,
    ready: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Follow the logs until interrupted and count the turns that come once `ready` was called."""
    reports = follow(list(paths), Options(turns=True), steadily=True, pause=pause)
    counter.skip(next(reports).per_turn or ())
    ready()
    for report in reports:
        counter.see(report.per_turn or (), clock())


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InputError(f"{listen!r} is no address to listen on; write HOST:PORT, such as 127.0.0.1:9464")
    return host.strip("[]"), int(port)
