"""What the scanner hands on: one fact for each message that was recognised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from kvdiag.diagnosis.digest import Digest


class Fact(NamedTuple):
    """One recognised message. `line` counts from 1 within its block until the reader adds the block's offset."""

    kind: str
    line: int
    label: str
    origin: str
    pid: int | None
    stamp: float | None
    data: dict[str, Any]
    text: str
    """The line, neutralised and cut: evidence."""


class Scanned(NamedTuple):
    """What one block of one file holds."""

    lines: int
    facts: list[Fact]
    accepted: int
    """Completion requests that an access log says were accepted (2xx)."""
    origins: dict[str, int]
    """Lines taken apart, by their origin."""
    binary: bool = False
    digest: Digest | None = None
    """What the lines add up to that were recognised and, nothing having happened, not handed on."""
