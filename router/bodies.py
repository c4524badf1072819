"""Request bodies: the few fields that the router reads, and the two calls made of one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from kvdiag.router.answers import PARAMS

Raw = msgspec.Raw
_fields: Final = msgspec.json.Decoder(dict[str, Raw])
_items: Final = msgspec.json.Decoder(list[Raw])
_encoder: Final = msgspec.json.Encoder()
_ONE: Final = Raw(b"1")
_FALSE: Final = Raw(b"false")
_DONE: Final = b"data: [DONE]"
_NOT_FOR_PREFILL: Final = ("stream_options", "min_tokens", "min_completion_tokens", "background")


@dataclass(frozen=True, slots=True)
class Api:
    """One engine API that generates tokens."""

    path: str
    limit: str
    """The field that bounds the tokens generated."""
    history: str
    """The field that holds the conversation so far."""
    final: bytes
    """What the end of a stream contains."""
    other_limits: tuple[str, ...] = ()


APIS: Final = {
    api.path: api
    for api in (
        Api("/v1/chat/completions", "max_tokens", "messages", _DONE, ("max_completion_tokens",)),
        Api("/v1/completions", "max_tokens", "prompt", _DONE),
        Api("/v1/responses", "max_output_tokens", "input", b"response.completed"),
        Api("/v1/messages", "max_tokens", "messages", b"event: message_stop"),
    )
}


class BodyError(ValueError):
    """The body cannot be forwarded; the message is for the client."""


class Body(msgspec.Struct, frozen=True):
    """A request's JSON object, values as bytes."""

    api: Api
    fields: dict[str, Raw]
    model: str | None
    stream: bool

    @classmethod
    def parse(cls, api: Api, data: bytes) -> Body:
        """Read a body; a `kv_transfer_params` sent by the client is dropped: it could name another tenant's blocks."""
        try:
            fields = _fields.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BodyError("the request body is not a JSON object") from error
        fields.pop(PARAMS, None)
        stream = fields.get("stream")
        return cls(api, fields, _text(fields.get("model")), stream is not None and bytes(stream) == b"true")

    @property
    def one_prompt_one_answer(self) -> bool:
        """Whether decode will run exactly one request; others would read one handle several times."""
        fields = self.fields
        for name in ("n", "best_of"):
            if name in fields and not self._is(name, b"1", b"null"):
                return False
        return not self._is("use_beam_search", b"true") and not self._prompts_many()

    @property
    def decode_only(self) -> bool:
        """Whether only the engine that answered before knows the history (Responses API), or works in the background."""
        return bool(self.text("previous_response_id")) or self._is("background", b"true")

    def text(self, name: str) -> str | None:
        """Return a string field, None where it is missing or something else."""
        return _text(self.fields.get(name))

    def nested_text(self, name: str, inner: str) -> str | None:
        """Return a string field of an object field."""
        raw = self.fields.get(name)
        if raw is None:
            return None
        try:
            return _text(_fields.decode(raw).get(inner))
        except (msgspec.DecodeError, RecursionError):
            return None

    def history(self) -> list[Raw]:
        """Return the messages or input items, empty where there is no such list."""
        raw = self.fields.get(self.api.history)
        if raw is None or not _starts(raw, b"["):
            return []
        try:
            return _items.decode(raw)
        except (msgspec.DecodeError, RecursionError):
            return []

    def for_prefill(self, params: bytes) -> bytes:
        """Return the prefill call: the same prompt, one token, no stream."""
        fields = {name: value for name, value in self.fields.items() if name not in _NOT_FOR_PREFILL}
        fields[self.api.limit] = _ONE
        for name in self.api.other_limits:
            if name in fields:
                fields[name] = _ONE
        fields["stream"] = _FALSE
        if self.api.history == "input":
            fields["store"] = _FALSE
        fields[PARAMS] = Raw(params)
        return _encoder.encode(fields)

    def for_decode(self, params: bytes | None) -> bytes:
        """Return the decode call: the client's request and where to read the prompt's KV."""
        if params is None:
            return _encoder.encode(self.fields)
        return _encoder.encode({**self.fields, PARAMS: Raw(params)})

    def _is(self, name: str, *values: bytes) -> bool:
        raw = self.fields.get(name)
        return raw is not None and bytes(raw) in values

    def _prompts_many(self) -> bool:
        """Whether a completion's `prompt` is a list of several prompts (a list of token ids is one)."""
        if self.api.history != "prompt":
            return False
        items = self.history()
        return len(items) > 1 and not bytes(items[0]).isdigit()


def _starts(raw: Raw, byte: bytes) -> bool:
    return bytes(memoryview(raw)[:1]) == byte


def text_of(raw: Raw) -> str:
    """Return raw JSON as text."""
    return bytes(raw).decode("utf-8", "replace")


def _text(raw: Raw | None) -> str | None:
    if raw is None or not _starts(raw, b'"'):
        return None
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.DecodeError:
        return None
