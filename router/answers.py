"""Engines' JSON answers: what the router takes out of them, and the errors that it answers itself."""

from __future__ import annotations

from typing import Final

import msgspec

from kvdiag.context import KEY

PARAMS: Final = "kv_transfer_params"
_NESTED: Final = ("response", "message")
"""Where the Responses and Messages APIs keep the answer inside a stream event."""
_NULL: Final = b"null"
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encoder: Final = msgspec.json.Encoder()


class _TokenDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    input_tokens: int | None = None
    prompt_tokens_details: _TokenDetails | None = None


class PrefillAnswer(msgspec.Struct):
    """What the decode call needs of prefill's answer, and what explains the turn."""

    kv_transfer_params: dict[str, msgspec.Raw] | None = None
    usage: _Usage | None = None

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt, where the engine said so."""
        if self.usage is None:
            return None
        return self.usage.prompt_tokens if self.usage.prompt_tokens is not None else self.usage.input_tokens

    @property
    def cached_tokens(self) -> int | None:
        """Tokens that prefill did not compute, wherever they came from."""
        raw = (self.kv_transfer_params or {}).get("remote_prefill_cached_tokens")
        if raw is not None and bytes(raw).isdigit():
            return int(bytes(raw))
        details = self.usage.prompt_tokens_details if self.usage else None
        return details.cached_tokens if details else None


_prefill: Final = msgspec.json.Decoder(PrefillAnswer)


def parse_prefill(body: bytes) -> PrefillAnswer | None:
    """Return prefill's answer, or None where it is not what vLLM sends."""
    try:
        return _prefill.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def take_handle(body: bytes) -> tuple[bytes, bytes | None]:
    """Return the JSON object without anything internal, and the handle that it held.

    What is not a JSON object comes back unchanged.
    """
    try:
        fields = _fields.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return body, None
    handle = _take(fields)
    for name in _NESTED:
        inner = fields.get(name)
        if inner is not None and bytes(memoryview(inner)[:1]) == b"{":
            cleaned, nested = take_handle(bytes(inner))
            fields[name] = msgspec.Raw(cleaned)
            handle = handle or nested
    return _encoder.encode(fields), handle


def _take(fields: dict[str, msgspec.Raw]) -> bytes | None:
    fields.pop(KEY, None)
    raw = fields.pop(PARAMS, None)
    return None if raw is None or bytes(raw) == _NULL else bytes(raw)


def error_body(status: int, message: str) -> bytes:
    """Return an error in OpenAI's shape."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return _encoder.encode({"error": {"message": message, "type": kind, "param": None, "code": status}})


def error_event(path: str, status: int, message: str) -> bytes:
    """Return the event with which a stream that has begun ends in an error, as clients of that API expect it."""
    if path == "/v1/messages":
        error: dict[str, object] = {"type": "error", "error": {"type": "api_error", "message": message}}
    elif path == "/v1/responses":
        error = {"type": "error", "code": "server_error", "message": message, "param": None}
    else:
        return b"data: %b\n\ndata: [DONE]\n\n" % error_body(status, message)
    return b"event: error\ndata: %b\n\n" % _encoder.encode(error)
