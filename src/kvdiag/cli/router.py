"""`kvdiag router`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from kvdiag.errors import InputError, MissingExtraError

_EPILOG = """\b
Examples:
  kvdiag router --prefill http://p:8100 --decode http://d:8200 --turn-log turns.jsonl
  kvdiag router --config router.toml --check

Every setting has a place in the file (TOML or YAML, see docs/router.md) and in the environment:
KVDIAG_ROUTER__PORT, KVDIAG_ROUTER__DEADLINES__REUSE_S and so on. Flags win over the environment, that over the file."""


@click.command(name="router", epilog=_EPILOG)
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="Settings file, .toml or .yaml.")
@click.option(
    "--prefill",
    multiple=True,
    metavar="URL",
    help="Prefill engine; repeatable. http://HOST:PORT[@RANKS], dns+http://...",
)
@click.option("--decode", multiple=True, metavar="URL", help="Decode engine; repeatable.")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on; 0 picks a free one.  [default: 8000]")
@click.option("--turn-log", type=click.Path(path_type=Path, dir_okay=False), help="JSONL file of turns.")
@click.option(
    "--handle-ttl",
    "handle_ttl_s",
    type=float,
    metavar="S",
    help="For how long a handle is sent.  [default: by decode's TTL]",
)
@click.option("--store", type=click.Choice(["memory", "redis"]), help="Where handles are kept.  [default: memory]")
@click.option("--store-url", metavar="URL", help="redis://HOST:PORT/DB.")
@click.option(
    "--holdout", type=float, metavar="SHARE", help="Share of conversations that never reuse, to measure against."
)
@click.option(
    "--derive/--no-derive",
    "derive_conversations",
    default=None,
    help="Recognise unnamed conversations by their history.  [default: on]",
)
@click.option("--otlp-endpoint", metavar="URL", help="Send spans to http://HOST:4318 or grpc://HOST:4317.")
@click.option("--otlp-metrics-endpoint", metavar="URL", help="Push metrics there too, beside /metrics.")
@click.option("--check", is_flag=True, help="Check the settings and stop.")
def command(
    config: Path | None,
    store: str | None,
    store_url: str | None,
    *,
    check: bool,
    **given: Any,  # noqa: ANN401 - flags
) -> None:
    """Serve as the stateful prefill/decode router."""
    try:
        import uvloop  # noqa: PLC0415 - the `router` extra may be missing

        from kvdiag.router.config import load  # noqa: PLC0415 - likewise
        from kvdiag.router.logs import configure  # noqa: PLC0415 - likewise
        from kvdiag.router.server import serve  # noqa: PLC0415 - likewise
    except ImportError:
        raise MissingExtraError("the router", "router") from None
    flags = {name: value for name, value in given.items() if value not in (None, ())}
    if store is not None or store_url is not None:
        flags["store"] = {k: v for k, v in (("kind", store), ("url", store_url)) if v is not None}
    settings = load(config, os.environ, flags)
    if check:
        _require_folder(settings.turn_log)
        click.echo("settings are usable")
        return
    configure(settings.log_format)
    uvloop.run(serve(settings))


def _require_folder(turn_log: Path | None) -> None:
    """Raise InputError where no turn could be logged; a router that serves does so all the same, and says so."""
    if turn_log is not None and not os.access(turn_log.parent, os.W_OK | os.X_OK):
        raise InputError(f"turn_log {turn_log}: its folder is missing or cannot be written; make it or choose another")
