"""The `kvdiag` command. Each verb lives in a module of its own, imported only when it runs."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kvdiag import __version__
from kvdiag.errors import ExitCode, KvdiagError

if TYPE_CHECKING:
    from collections.abc import Sequence

VERBS: Final[dict[str, str]] = {
    "classify": "Say which turns were slow or not reused, and why, from logs.",
    "explain": "Tell one request or conversation as a time line.",
    "tune": "Recommend TTLs and the recompute threshold from what the logs show.",
    "compare": "Compare two sets of logs: before and after, off and on.",
    "doctor": "Check running engines and router, and prove that a second turn is reused.",
    "watch": "Watch turns, causes and transfers of running engines and router.",
    "dashboards": "Write Grafana dashboards and Prometheus rules, or push them.",
    "demo": "Run a real prefill/decode pair on CPU and classify its own logs.",
    "export": "Follow logs of stock engines and routers and serve them as metrics.",
    "runbook": "Print what to do about a cause.",
    "router": "Serve as the stateful prefill/decode router.",
}
"""Every verb with its one-line help; `kvdiag.cli.<verb>:command` is what runs."""


class _Verbs(click.Group):
    """Lists verbs without importing them: start-up must stay below 0.3 s."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"kvdiag.cli.{cmd_name}")
        command = module.command
        assert isinstance(command, click.Command)  # noqa: S101 - a verb without `command` is our own mistake
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            near = difflib.get_close_matches(args[0], VERBS, n=1)
            if not near:
                raise
            raise click.UsageError(f"No such command '{args[0]}'; did you mean {near[0]}?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kvdiag")
def cli() -> None:
    """Find out why agents' turns were slow on disaggregated vLLM."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command and exit with a code of `ExitCode`; a crash exits 70, never as a finding."""
    sys.exit(_run(argv))


def _run(argv: Sequence[str] | None) -> int:  # noqa: PLR0911 - one line for each way to end
    try:
        result = cli.main(argv, prog_name="kvdiag", standalone_mode=False)
    except KvdiagError as error:
        return _fail(str(error), error.exit_code)
    except click.ClickException as error:
        error.show()
        return ExitCode.UNUSABLE
    except click.exceptions.Exit as request:
        return request.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", ExitCode.INTERRUPTED)
    except SystemExit as end:
        return _code(end)
    except Exception as error:  # noqa: BLE001 - the last line of defence, so that a crash has its own exit code
        return _crash(error)
    return result if isinstance(result, int) else ExitCode.CLEAR


def _code(end: SystemExit) -> int:
    """Verbs return their code; only click exits, with 1, when the reader of our output (`head`) has gone away."""
    if end.code == 1:
        return ExitCode.CLEAR
    return end.code if isinstance(end.code, int) else ExitCode.INTERNAL


def _fail(message: str, code: ExitCode) -> int:
    click.echo(f"kvdiag: {message}", err=True)
    return code


def _crash(error: Exception) -> int:
    if os.environ.get("KVDIAG_DEBUG"):
        traceback.print_exception(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(where.filename).name}:{where.lineno}"
    return _fail(
        f"internal error: {type(error).__name__}: {error} ({place}); please report it, KVDIAG_DEBUG=1 shows more",
        ExitCode.INTERNAL,
    )
