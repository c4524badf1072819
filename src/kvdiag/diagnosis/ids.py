"""Request ids: one turn has several spellings, this module knows which belong together.

The router's X-Request-Id becomes `chatcmpl-<id>` in the API server (`cmpl-<id>-<n>` for completions,
`generate-tokens-<id>` for tokens in), and since about 0.14 each engine appends eight random hex digits of its own,
unless VLLM_DISABLE_REQUEST_ID_RANDOMIZATION is set: then ids that callers end like that are whole.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

_PREFIX: Final = re.compile(r"(?:\d+_)?(?:chatcmpl|cmpl|generate-tokens|generate|resp)-")
_COMPLETION: Final = re.compile(r"(?:\d+_)?cmpl-")
_ADDRESSED: Final = re.compile(r"___prefill_addr_(\S{1,100}?)___decode_addr_(\S{1,100})_[0-9a-f]{16,}$")
_INDEX: Final = re.compile(r"-\d{1,3}$")
_HEX: Final = frozenset("0123456789abcdef")

MAX_ID_CHARS: Final = 200
MAX_CONVERSATION_CHARS: Final = 256


def external_id(engine_id: str, *, suffixed: bool = True) -> str:
    """Return the id that router, prefill and decode share for a request.

    `suffixed` is false for the lines that the API server prints before the engine adds its suffix.
    """
    text = engine_id[:MAX_ID_CHARS]
    if suffixed and text[-9:-8] == "-" and _HEX.issuperset(text[-8:]):
        text = text[:-9]
    if text.startswith("chatcmpl-"):
        return text[9:]
    if _COMPLETION.match(text):
        text = _INDEX.sub("", text)
    prefix = _PREFIX.match(text)
    return text[prefix.end() :] if prefix else text


def conversation_id(name: str) -> str:
    """Return what a router calls a conversation, as any client chose it: what is too long by its beginning and a digest."""
    if len(name) <= MAX_CONVERSATION_CHARS:
        return name
    return f"{name[:MAX_ID_CHARS]}~{sha256(name.encode('utf-8', 'replace')).hexdigest()[:16]}"


def spellings(engine_id: str) -> tuple[str, str]:
    """Return the external ids that an engine's id may stand for: the likely one, and the one where no suffix was added.

    They are the same where the id does not end like one with a suffix.
    """
    return external_id(engine_id), external_id(engine_id, suffixed=False)


def addressed(turn_id: str) -> tuple[str, str] | None:
    """Return the addresses of prefill and decode that vLLM's Rust router writes into the ids it makes up."""
    match = _ADDRESSED.search(turn_id)
    return (match[1], match[2]) if match else None
