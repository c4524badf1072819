"""Clients: polite ones, slow ones, ones that go away, and one that drives the pair by hand without a router."""

from __future__ import annotations

import http.client
import json
import socket
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvdiag.localstack.agent import Answer, complete
from kvdiag.localstack.engine import MODEL_NAME
from kvdiag.localstack.process import HOST

if TYPE_CHECKING:
    from kvdiag.localstack import Service

Messages = list[dict[str, str]]
Params = dict[str, Any]
BROKEN: Final = 0
"""Status of an answer that broke off."""


@dataclass(frozen=True)
class Exchange:
    """What one request asked and got."""

    messages: Messages
    answer: Answer
    parameters: dict[str, object]

    @property
    def failed(self) -> bool:
        """Whether the client got an error, as a status or inside a stream."""
        return self.answer.status != http.client.OK or "error" in (self.answer.body or {})


def ask(port: int, messages: Messages, headers: dict[str, str] | None = None, **parameters: object) -> Exchange:
    """Send one turn; an answer that breaks off is an answer too."""
    sent = [dict(message) for message in messages]
    try:
        answer = complete(port, sent, headers=headers, **parameters)
    except (OSError, http.client.HTTPException, ValueError) as error:
        answer = Answer(BROKEN, repr(error), 0.0)
    return Exchange(sent, answer, parameters)


class Stream:
    """A streamed answer read by hand, through a receive buffer of the smallest size."""

    def __init__(self, port: int, messages: Messages, conversation: str, **parameters: object) -> None:
        body = {"model": MODEL_NAME, "messages": messages, "temperature": 0, "stream": True, **parameters}
        payload = json.dumps(body).encode()
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self._socket.settimeout(120)
        self._socket.connect((HOST, port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {HOST}\r\nx-conversation-id: {conversation}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
        self._socket.sendall(head.encode() + payload)

    def read(self, size: int = 512) -> bytes:
        """Return some bytes of the answer, empty when the router has closed it."""
        return self._socket.recv(size)

    def drain(self) -> None:
        """Read to the end."""
        tail = b""
        while b"[DONE]" not in tail and (data := self.read(65536)):
            tail = (tail + data)[-1024:]

    def close(self) -> None:
        """Go away, whatever is still to come."""
        self._socket.close()


class Hand:
    """The two calls of one turn."""

    def __init__(self, prefill: Service, decode: Service) -> None:
        self._prefill = prefill
        self._decode = decode
        self._headers: dict[str, str] = {}

    def prefill(self, messages: Messages, handle: Params | None) -> tuple[Exchange, Params | None]:
        """Return prefill's answer and its params."""
        self._headers = {"X-Request-Id": str(uuid.uuid4())}
        params = {**(handle or {}), "do_remote_decode": True, "do_remote_prefill": False}
        exchange = ask(self._prefill.port, messages, headers=self._headers, max_tokens=1, kv_transfer_params=params)
        return exchange, _params(exchange)

    def decode(self, prefilled: Exchange, params: Params | None) -> tuple[Exchange, Params | None]:
        """Return decode's answer to the prompt that was prefilled, and its params: the next turn's handle."""
        exchange = ask(self._decode.port, prefilled.messages, headers=self._headers, kv_transfer_params=params)
        return Exchange(exchange.messages, exchange.answer, {}), _params(exchange)


def _params(exchange: Exchange) -> Params | None:
    params: Params | None = (exchange.answer.body or {}).get("kv_transfer_params")
    return params
