"""A small multi-turn agent: what a client of the router does, over plain HTTP."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kvdiag.localstack.engine import MODEL_NAME
from kvdiag.localstack.process import HOST

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S: Final = 180.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: HTTP status, text, seconds to the first token (the whole answer where not streamed)."""

    status: int
    text: str
    ttft_s: float
    body: dict[str, Any] | None = None
    """The JSON body, or the last chunk of a stream."""


def complete(
    port: int, messages: list[dict[str, str]], *, headers: dict[str, str] | None = None, **parameters: object
) -> Answer:
    """Send one chat completion and read the answer to its end; `parameters` go into the body."""
    body = {"model": MODEL_NAME, "messages": messages, "temperature": 0, "max_tokens": 24, **parameters}
    connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_S)
    began = time.monotonic()
    try:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json", **(headers or {})}
        )
        response = connection.getresponse()
        if body.get("stream") and response.status == http.client.OK:
            return _read_stream(response, began)
        return _read_json(response, began)
    finally:
        connection.close()


def _read_json(response: http.client.HTTPResponse, began: float) -> Answer:
    raw = response.read()
    elapsed = time.monotonic() - began
    try:
        body = json.loads(raw)
    except ValueError:
        return Answer(response.status, raw.decode(errors="replace"), elapsed)
    if response.status != http.client.OK:
        return Answer(response.status, "", elapsed, body)
    return Answer(response.status, body["choices"][0]["message"]["content"], elapsed, body)


def _read_stream(response: http.client.HTTPResponse, began: float) -> Answer:
    parts: list[str] = []
    ttft = 0.0
    last: dict[str, Any] | None = None
    for chunk in _events(response):
        # vLLM sends the first chunk, which names the role, with the first token; its text may be empty.
        ttft = ttft or time.monotonic() - began
        last = chunk
        parts += (choice.get("delta", {}).get("content") or "" for choice in chunk.get("choices", ()))
    return Answer(response.status, "".join(parts), ttft, last)


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield json.loads(line[6:])


@dataclass
class Agent:
    """One conversation: every turn sends the whole history."""

    port: int
    conversation: str | None = None
    """Sent as X-Conversation-ID, or None to send nothing."""
    stream: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)

    def say(self, text: str) -> Answer:
        """Add a user message, send the turn, keep the answer in the history."""
        self.messages.append({"role": "user", "content": text})
        headers = {"X-Conversation-ID": self.conversation} if self.conversation else {}
        parameters = {"stream": self.stream, **self.parameters}
        answer = complete(self.port, self.messages, headers=headers, **parameters)
        self.messages.append({"role": "assistant", "content": answer.text})
        return answer
