"""Runbooks: one page per cause, named as the cause, and `triage` for alerts on symptoms."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from kvdiag.causes import CAUSES
from kvdiag.errors import InputError

SECTIONS: Final = ("Meaning", "Impact", "Diagnosis", "Mitigation", "How to reproduce here", "Prevention")
TRIAGE: Final = "triage"
_HEADING: Final = re.compile(r"^## (.+)$", re.MULTILINE)
_STEP: Final = re.compile(
    r"^```sh\n(?P<command>.*?)^```\n+(?:```text\n(?P<expected>.*?)^```\n)?", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a page and the output to expect; `...` in it stands for any text."""

    command: str
    expected: str | None

    def matches(self, output: str) -> bool:
        """Whether every expected line appears in the output; in which order is promtool's own business."""
        wanted = [line.strip() for line in (self.expected or "").splitlines() if line.strip()]
        return all(re.search(re.escape(line).replace(r"\.\.\.", ".*?"), output) for line in wanted)


@dataclass(frozen=True, slots=True)
class Page:
    """One runbook."""

    name: str
    text: str

    @property
    def sections(self) -> dict[str, str]:
        """The text under each heading."""
        _, *parts = _HEADING.split(self.text)
        return dict(zip(parts[::2], parts[1::2], strict=True))

    def steps(self, section: str) -> tuple[Step, ...]:
        """Return the commands of a section in order."""
        found = _STEP.finditer(self.sections.get(section, ""))
        return tuple(Step(match["command"].strip(), match["expected"]) for match in found)


def names() -> tuple[str, ...]:
    """Return the name of every page."""
    return tuple(
        sorted(entry.name.removesuffix(".md") for entry in files(__name__).iterdir() if entry.name.endswith(".md"))
    )


def page(name: str) -> Page:
    """Return the page of a cause (`missing_metadata` or, with its detail, `missing_metadata/consumed`)."""
    cause, _, detail = name.partition("/")
    known = names()
    if cause not in known:
        near = [page for page in known if cause and page.startswith(cause)] or difflib.get_close_matches(
            cause, known, n=1
        )
        hint = f"did you mean {' or '.join(near)}?" if near else f"choose from: {', '.join(known)}"
        raise InputError(f"no runbook named {name!r}; {hint}")
    details = CAUSES[cause].details if cause in CAUSES else {}
    if detail and detail not in details:
        known_details = f"choose from: {', '.join(details)}" if details else "it has none"
        raise InputError(f"{cause} has no detail named {detail!r}; {known_details}")
    return Page(cause, files(__name__).joinpath(f"{cause}.md").read_text(encoding="utf-8"))
