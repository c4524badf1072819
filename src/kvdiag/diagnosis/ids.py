"""Request ids: one turn has several spellings, this module knows which belong together.

The router's X-Request-Id becomes `chatcmpl-<id>` in the API server (`cmpl-<id>-<n>` for completions,
`generate-tokens-<id>` for tokens in), and since about 0.14 each engine appends eight random hex digits of its own.
"""

from __future__ import annotations

import re
from typing import Final

_PREFIX: Final = re.compile(r"^(?:\d+_)?(?:chatcmpl|cmpl|generate-tokens|generate|resp)-")
_COMPLETION: Final = re.compile(r"^(?:\d+_)?cmpl-")
_SUFFIX: Final = re.compile(r"-[0-9a-f]{8}$")
_INDEX: Final = re.compile(r"-\d{1,3}$")

MAX_ID_CHARS: Final = 200


def external_id(engine_id: str, *, suffixed: bool = True) -> str:
    """Return the id that router, prefill and decode share for a request.

    `suffixed` is false for the lines that the API server prints before the engine adds its suffix.
    """
    text = engine_id[:MAX_ID_CHARS]
    if suffixed:
        text = _SUFFIX.sub("", text)
    if _COMPLETION.match(text):
        text = _INDEX.sub("", text)
    return _PREFIX.sub("", text)
