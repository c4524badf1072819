"""What a scenario is: what is done to which engines, and what every careful reader of its logs must conclude."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvdiag.causes import CAUSES, OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.faults.rig import Rig

    Drive = Callable[[Rig], None]

OF_THIS_MACHINE: Final = frozenset({"slow_transfer", "compute_bound", "queueing", "router_overhead", "unexplained"})
"""What a busy machine does to any run: no false alarm, except where nothing else was done."""
CALM: Final = frozenset({"healthy", *OUTCOMES})
"""Verdicts on runs in which nothing is worth anybody's attention."""


@dataclass(frozen=True)
class Evidence:
    """The lines of `file` that prove a verdict, and what they show."""

    file: str
    pattern: str
    role: str


@dataclass(frozen=True)
class Expected:
    """The conclusion that the logs allow, written from what was done."""

    verdict: str
    """`cause` or `cause/detail`; a cause alone leaves the detail open."""
    why: str = "A run in which everything worked."
    turns: int | None = None
    or_else: tuple[str, ...] = ()
    """Causes that the lines support as a headline as well."""
    beside: tuple[str, ...] = ()
    """Causes that are there as well, and no headline."""
    alerts: tuple[str, ...] | None = ()
    """Alerts whose page leads on to it, beside those of its cause; None where it is over before anybody could act."""
    evidence: tuple[Evidence, ...] = ()
    """Where none is given, the turn log's lines of this cause and detail."""
    also_wrong: tuple[str, ...] = ()

    @property
    def cause(self) -> str:
        """Return the cause alone."""
        return self.verdict.partition("/")[0]

    @property
    def detail(self) -> str | None:
        """Return the detail, None where it is open."""
        return self.verdict.partition("/")[2] or None

    @property
    def must_not(self) -> list[str]:
        """Return the causes that no certain or likely finding may have; `*` is every fault."""
        if self.cause in CALM:
            return ["*"]
        return sorted(CAUSES.keys() - OUTCOMES - OF_THIS_MACHINE - {self.cause, *self.or_else, *self.beside})

    @property
    def proof(self) -> tuple[Evidence, ...]:
        """Return what proves the verdict."""
        if self.evidence or self.cause in CALM:
            return self.evidence
        return (turn_lines(self.verdict, "the turn's record"),)


def turn_lines(verdict: str, role: str, file: str = "turns.jsonl") -> Evidence:
    """Return every turn-log line of a cause and detail."""
    cause, _, detail = verdict.partition("/")
    found = f'"detail":"{detail}"' if detail else '"detail":null'
    return Evidence(file, f'"cause":"{cause}",{found}', role)


HEALTHY: Final = Expected("healthy")


@dataclass(frozen=True)
class Scenario:
    """One row of the matrix."""

    name: str
    what: str
    """What is done, in one sentence."""
    drive: Drive
    expected: Expected
    """From all logs: engines, connectors' events, routers and their turn logs."""
    stock: Expected | None
    """From the engines' logs alone; None where they cannot show it."""
    engines: tuple[str, str]
    """Names of the prefill and decode configurations."""
    router: tuple[str, ...]
    """Arguments of the router."""
    errors: int
    """Requests whose client must expect an error."""
    wrong_text: bool
    """Whether answers may differ from an honest prefill's."""
    network: bool
    """Needs a network namespace of its own."""
    spoils: bool
    """Whether the engines are of no use afterwards."""
    keep: bool
    """Whether its logs are kept as an incident case."""


SCENARIOS: Final[list[Scenario]] = []
"""Every scenario, in the order in which they are defined."""


def scenario(
    expected: Expected = HEALTHY,
    *,
    stock: Expected | None = None,
    engines: tuple[str, str] = ("prefill", "decode"),
    router: tuple[str, ...] = (),
    errors: int = 0,
    wrong_text: bool = False,
    network: bool = False,
    spoils: bool = False,
    keep: bool = True,
) -> Callable[[Drive], Drive]:
    """Make a row of the function that drives it; its name and docstring are the row's."""

    def register(drive: Drive) -> Drive:
        title, text = drive.__name__.replace("_", "-"), " ".join((drive.__doc__ or "").split())
        SCENARIOS.append(
            Scenario(title, text, drive, expected, stock, engines, router, errors, wrong_text, network, spoils, keep)
        )
        return drive

    return register
