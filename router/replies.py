"""What the model answered, gathered from a stream or a whole answer, so that the next turn's history can be recognised."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kvdiag.router.bodies import text_of

REPLY_LIMIT: Final = 8 << 20
"""Bytes of text and arguments; a longer answer is not recognised later."""
_encoder: Final = msgspec.json.Encoder(order="deterministic")


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Block(msgspec.Struct):
    """A part of a message's content; Anthropic's tool calls are such parts."""

    type: str | None = None
    text: str | None = None
    partial_json: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"{}")


class _Message(msgspec.Struct):
    content: str | list[_Block] | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    message: _Message | None = None
    delta: _Message | None = None


class _Response(msgspec.Struct):
    id: str | None = None


class _Answer(msgspec.Struct):
    """A whole answer or one stream event of any of the APIs."""

    id: str | None = None
    response: _Response | None = None
    choices: list[_Choice] = []
    content: list[_Block] | None = None
    index: int = 0
    content_block: _Block | None = None
    delta: _Block | None = None


_message: Final = msgspec.json.Decoder(_Message)
_answer: Final = msgspec.json.Decoder(_Answer)


class Reply:
    """One answer of the model: its text and its tool calls. Reasoning is left out, as clients leave it out."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: dict[int, list[str]] = {}
        self._size = 0
        self.response_id: str | None = None
        """What `previous_response_id` will name."""
        self.readable = True
        """False once something did not fit: then `canonical` means nothing."""

    def read_events(self, data: bytes) -> None:
        """Take whole server-sent events."""
        for line in data.split(b"\n"):
            if line.startswith(b"data:") and line[5:7].lstrip()[:1] == b"{":
                self.read_answer(line[5:])

    def read_answer(self, data: bytes) -> None:
        """Take a whole answer, or one event's data."""
        try:
            answer = _answer.decode(data)
        except (msgspec.DecodeError, RecursionError):
            self.readable = False
            return
        self.response_id = answer.response.id if answer.response is not None else answer.id or self.response_id
        for choice in answer.choices:
            if choice.index == 0:
                self._take(choice.delta or choice.message)
        if answer.content is not None:
            self._take(_Message(content=answer.content))
        for block in (answer.content_block, answer.delta):
            if block is not None:
                self._take_block(answer.index, block)

    def read_message(self, data: bytes) -> None:
        """Take a message as a client sends it back."""
        try:
            self._take(_message.decode(data))
        except (msgspec.DecodeError, RecursionError):
            self.readable = False

    def _take(self, message: _Message | None) -> None:
        if message is None:
            return
        if isinstance(message.content, str):
            self._add_text(message.content)
        for position, block in enumerate(message.content if isinstance(message.content, list) else ()):
            self._take_block(position, block)
        for position, call in enumerate(message.tool_calls or ()):
            self._take_call(position if call.index is None else call.index, call)

    def _take_block(self, position: int, block: _Block) -> None:
        if block.text:
            self._add_text(block.text)
        if block.type == "tool_use":
            given = text_of(block.input)
            self._add_call(position, block.id or "", block.name or "", "" if given == "{}" else given)
        elif block.partial_json:
            self._add_call(position, "", "", block.partial_json)

    def _take_call(self, position: int, call: _ToolCall) -> None:
        function = call.function or _Function()
        self._add_call(position, call.id or "", function.name or "", function.arguments or "")

    def _add_text(self, text: str) -> None:
        self._text.append(text)
        self._grow(len(text))

    def _add_call(self, position: int, *parts: str) -> None:
        known = self._calls.setdefault(position, ["", "", ""])
        for place, part in enumerate(parts):
            known[place] += part
        self._grow(sum(map(len, parts)))

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > REPLY_LIMIT:
            self.readable = False
            self._text.clear()
            self._calls.clear()

    def canonical(self) -> bytes:
        """Return the answer in one spelling, however it came."""
        calls = [[name, call_id, _arguments(given)] for call_id, name, given in self._calls.values()]
        return _encoder.encode(["answer", "".join(self._text).strip(), calls])


def _arguments(text: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return msgspec.json.decode(text) if text else {}
    except (msgspec.DecodeError, RecursionError):
        return text
