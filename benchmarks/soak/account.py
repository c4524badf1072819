"""Figures that must agree, and the report on whether they do."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from benchmarks.soak.watch import Course


@dataclass(frozen=True)
class Entry:
    """One figure and what it has to be."""

    what: str
    expected: float
    found: float

    @property
    def right(self) -> bool:
        """Return whether it is."""
        return self.expected == self.found


@dataclass
class Account:
    """Everything that a run has to answer for."""

    entries: list[Entry] = field(default_factory=list)
    courses: list[Course] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    """Figures that are told, not judged."""

    def enter(self, what: str, expected: float, found: float) -> None:
        """Add a figure."""
        self.entries.append(Entry(what, expected, found))

    @property
    def problems(self) -> list[str]:
        """Return what does not hold, in words."""
        wrong = [f"{e.what}: {e.found:.0f}, expected {e.expected:.0f}" for e in self.entries if not e.right]
        grown = [
            f"{c.name}: grew by {c.growth:.1%}, at most {c.allowance:.0%} allowed" for c in self.courses if not c.flat
        ]
        return wrong + grown

    def lines(self) -> list[str]:
        """Return the account as a Markdown table."""
        rows = [f"| {entry.what} | {entry.expected:,.0f} | {entry.found:,.0f} |" for entry in self.entries]
        rows += [
            f"| {course.name} | {_allowed(course)} | {course.growth:+.1%} ({_thirds(course)}) |"
            for course in self.courses
        ]
        rows += [f"| {what} | | {found} |" for what, found in self.notes]
        return ["| | expected | found |", "|---|---|---|", *rows]


def _allowed(course: Course) -> str:
    return "still fills" if math.isinf(course.allowance) else f"at most +{course.allowance:.0%}"


def _thirds(course: Course) -> str:
    values, third = course.values, max(1, len(course.values) // 3)
    parts = (values[:third], values[third:-third] or values[:1], values[-third:])
    return " → ".join(f"{max(part):,.0f}" for part in parts)


def turn_log_lines(folder: Path) -> int:
    """Return the turns in a folder's turn log, rotated files included."""
    files: Iterable[Path] = folder.glob("turns.jsonl*")
    return sum(file.read_bytes().count(b"\n") for file in files)
