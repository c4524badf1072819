"""`kvdiag router`."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from kvdiag.errors import InputError, MissingExtraError


@click.command(name="router", context_settings={"auto_envvar_prefix": "KVDIAG_ROUTER", "show_default": True})
@click.option("--prefill", multiple=True, metavar="URL", help="A prefill engine, e.g. http://host:8100; repeatable.")
@click.option("--decode", multiple=True, metavar="URL", help="A decode engine; repeatable.")
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="Port to listen on; 0 picks a free one.")
@click.option("--turn-log", type=click.Path(path_type=Path, dir_okay=False), help="JSONL file of turns.")
@click.option("--handle-ttl", type=click.FloatRange(min=0), metavar="S", help="For how long a handle is sent, seconds.")
def command(
    prefill: tuple[str, ...],
    decode: tuple[str, ...],
    host: str,
    port: int,
    turn_log: Path | None,
    handle_ttl: float | None,
) -> None:
    """Serve as the stateful prefill/decode router."""
    try:
        import uvloop  # noqa: PLC0415 - the `router` extra may be missing

        from kvdiag.router.server import serve  # noqa: PLC0415 - likewise
        from kvdiag.router.settings import Settings  # noqa: PLC0415 - likewise
    except ImportError:
        raise MissingExtraError("the router", "router") from None
    for role, urls in (("prefill", prefill), ("decode", decode)):
        if not urls:
            raise InputError(f"no {role} engine given; add --{role} http://HOST:PORT")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    settings = Settings(
        prefill=prefill, decode=decode, host=host, port=port, turn_log=turn_log, handle_ttl_s=handle_ttl
    )
    uvloop.run(serve(settings))
