"""Cleaning what strangers wrote: terminal escapes, control characters, length."""

from __future__ import annotations

import re
from typing import Final

EVIDENCE_CHARS: Final = 400

_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
# The same where a shipper spelled the escape character out, as rsyslog does, or dropped it: colours only.
_SPELLED: Final = re.compile(r"(?:#033|\^\[|\\033|\\x1b|\\u001b)?\[\d{1,3}(?:;\d{1,3})*m")
# C0 and C1 controls, and the characters that reorder or hide text on a terminal.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def strip_ansi(text: str) -> str:
    """Return `text` without terminal escape sequences."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    # Whatever is coloured ends with a reset, which is quicker to look for.
    return _SPELLED.sub("", text) if "[0m" in text or "[0;" in text else text


def neutralise(text: str, limit: int = EVIDENCE_CHARS) -> str:
    """Return `text` fit to be shown anywhere: no escapes, no control characters, at most `limit` characters."""
    if len(text) <= limit and text.isascii() and text.isprintable():
        return text.strip()
    clean = _CONTROL.sub("", strip_ansi(text[: limit * 8])).strip()
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def ends(text: str, limit: int = EVIDENCE_CHARS) -> str:
    """Return `text` with its middle left out where it is too long: our records name the request first and the cause last."""
    half = (limit - 3) // 2
    return text if len(text) <= limit else f"{text[:half]} … {text[-half:]}"
