"""What router and connectors tell each other inside `kv_transfer_params["kvdiag"]`.

Upstream connectors ignore the extra key. Three records travel there:

* router -> connector: `TurnContext`, who asks;
* prefill's connector -> router: `TurnOutcome`, what prefill decided;
* decode's connector -> next prefill (through the router, untouched): `HandleContext`, what decode holds.

Everything parsed here may come from a stranger: wrong types give None, never an exception.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

KEY: Final = "kvdiag"
VERSION: Final = 1


class TurnContext(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="v", tag=VERSION):
    """Sent by the router with every prefill and decode request."""

    conversation: str | None = None
    """Hashed id."""
    turn: int = 1
    lookup: str | None = None
    """"hit", or the detail that says why no handle came along."""
    traceparent: str | None = None
    issued_at: float | None = None
    """When the router received the handle, seconds since the epoch by the router's clock."""
    age_s: float | None = None
    """Age of the handle when the router sent it on; compares no two clocks."""


class TurnOutcome(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="v", tag=VERSION):
    """Returned by prefill's connector in its response params."""

    cause: str
    detail: str | None = None
    prompt_tokens: int | None = None
    local_tokens: int | None = None
    remote_tokens: int | None = None
    lost_tokens: int | None = None
    queue_s: float | None = None
    """From the request's arrival in the engine until the scheduler admitted it."""
    wait_s: float | None = None
    """From claiming the remote tokens until they had arrived."""


class HandleContext(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="v", tag=VERSION):
    """Returned by decode's connector in its response params, kept by the router with the handle."""

    prefix: str | None = None
    """Digest of the tokens held; how it is built is the connector's affair."""
    prompt_tokens: int | None = None
    """How many of the tokens held were the prompt; what follows is the last response."""
    ttl_s: float | None = None
    """For how long decode keeps the blocks, from the moment it answered."""
    issued_at: float | None = None
    """When decode answered, seconds since the epoch by decode's clock; a router's `issued_at` replaces it."""
    notes: bool = False
    """Decode understands what a reading connector tells it beside upstream's protocol."""


_Record = TypeVar("_Record", TurnContext, TurnOutcome, HandleContext)


def parse(kind: type[_Record], params: object) -> _Record | None:
    """Return the record under `params["kvdiag"]`, or None where there is none that can be read."""
    if not isinstance(params, dict):
        return None
    raw: Any = params.get(KEY)
    if not isinstance(raw, dict) or raw.get("v") != VERSION:
        return None
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError:
        return None
