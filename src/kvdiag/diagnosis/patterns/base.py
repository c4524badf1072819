"""What a pattern is, and the pieces that patterns share.

`needle` is what the scanner looks for in raw bytes (so it holds no quote, no blank that JSON would escape and no
non-ASCII letter); `shape` is matched against the start of the message once its line has been taken apart, which is
what keeps model output that merely quotes a log line from being read as one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kvdiag.diagnosis.lines import Origin

ENGINE: Final[frozenset[Origin]] = frozenset({"vllm"})
ROUTER: Final[frozenset[Origin]] = frozenset({"proxy"})
NATIVE: Final[frozenset[Origin]] = frozenset({"native"})
ACCESS: Final[frozenset[Origin]] = frozenset({"access"})
BARE: Final[frozenset[Origin]] = frozenset({"bare", "access"})
TRACE: Final[frozenset[Origin]] = frozenset({"vllm", "bare"})
JSON: Final[frozenset[Origin]] = frozenset({"json"})

# Request ids are the client's to choose (X-Request-Id), engine ids are uuids: both bounded here.
ID: Final = r"(?P<id>[^\s,;'\"{}]{1,300}?)"
PEER: Final = r"(?P<peer>[\w.:-]{1,120}?)"
# Last line of a traceback: alone on its line, or below the message in a JSON record's `exc_info`.
RAISED: Final = r"(?:.*\n)?(?:[\w.]+\.)?"


# The end of uvicorn's access line, plain and coloured, as it stands in text and in JSON.
ERROR_STATUS: Final = (
    *(f"HTTP/{version}{quote} {digit}" for version in ("1.1", "1.0") for quote in ('"', '\\"') for digit in "45"),
    *(
        f"{quote} {escape}[{colour}m{digit}"
        for quote, escape in (('"', "\x1b"), ('\\"', "\\u001b"))
        for colour, digit in (("31", "4"), ("91", "5"))
    ),
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """One message. Named groups of `shape` become the fact's data."""

    kind: str
    needle: str
    shape: re.Pattern[str]
    sample: str
    source: str
    origins: frozenset[Origin]
    find: str | None = None
    """What the scanner compiles instead of the literal `needle`: a regular expression over bytes, if it must be."""
    spellings: tuple[str, ...] = ()
    """Literals to look for instead of `needle`, where quotes and colours give one message several spellings.
    Literals alone keep the scanner at its fastest."""
    fixed: dict[str, str] = field(default_factory=dict)
    """Data that every match carries."""


def pattern(
    kind: str,
    needle: str,
    shape: str,
    sample: str,
    source: str = "",
    origins: frozenset[Origin] = ENGINE,
    find: str | None = None,
    spellings: tuple[str, ...] = (),
    **fixed: str,
) -> Pattern:
    """Return a pattern; further keywords are data that every match carries."""
    return Pattern(kind, needle, re.compile(shape, re.DOTALL), sample, source, origins, find, spellings, fixed)
