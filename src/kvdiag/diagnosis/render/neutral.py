"""Text from logs made harmless for terminals: whoever writes a log must not drive the reader's screen."""

from __future__ import annotations

import re
from typing import Final

_BEYOND_ASCII: Final = (
    "\x80-\x9f"  # C1: escape sequences start here as well
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"  # invisible, line separators, direction overrides
    "\ufff9-\ufffb\U000e0000-\U000e007f"  # annotation and tag characters
    "\ud800-\udfff"  # lone surrogates cannot be written as UTF-8
)
_HOSTILE: Final = re.compile(f"[\x00-\x1f\x7f{_BEYOND_ASCII}]")
_HOSTILE_IN_JSON: Final = re.compile(f"[\x7f{_BEYOND_ASCII}]")
"""JSON escapes control characters by itself; what is left of them stands between values."""


def neutral(text: str) -> str:
    r"""Return `text` with every control, direction-changing or invisible character spelled out (`\x1b`)."""
    return text if text.isprintable() else _HOSTILE.sub(_spelled, text)


def neutral_json(text: str) -> str:
    """Return JSON text with the same characters as JSON escapes; the parsed value stays what it was."""
    return text if text.isascii() and "\x7f" not in text else _HOSTILE_IN_JSON.sub(_json_escape, text)


def _spelled(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
