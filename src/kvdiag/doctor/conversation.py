"""Requests of a probe: completions whose tokens are known, with and without KV params."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvdiag.causes import CAUSES
from kvdiag.doctor.http import NoAnswerError
from kvdiag.events import PROBE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvdiag.doctor.http import Answer
    from kvdiag.doctor.site import Service

PARAMS: Final = "kv_transfer_params"
FIRST_PREFILL: Final[dict[str, Any]] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_COMPLETIONS: Final = "/v1/completions"
_CHAT: Final = "/v1/chat/completions"
_LONGEST_ANSWER: Final = 512
_TAIL: Final = " Go on."
_TAIL_TOKENS: Final = 32


def probe_id() -> str:
    """Return a new id by which a request or conversation is known as the doctor's."""
    return f"{PROBE}{secrets.token_hex(8)}"


class BrokenLinkError(Exception):
    """The conversation could not be carried on. Says which link broke and the cause that stands for it."""

    def __init__(self, seen: str, cause: str, detail: str | None = None) -> None:
        super().__init__(seen)
        self.remedy = CAUSES[cause].remedy(detail)


@dataclass(frozen=True, slots=True)
class Turn:
    """One answered turn: what was sent (token ids where the server tells them, else text) and what came back."""

    prompt: list[int] | str
    answer: list[int] | str
    params: dict[str, Any]

    def followed_by(self) -> list[int] | str:
        """Return the next turn's prompt: everything so far, and a little more."""
        if isinstance(self.prompt, list) and isinstance(self.answer, list):
            return [*self.prompt, *self.answer, *self.prompt[:_TAIL_TOKENS]]
        return f"{self.prompt}{self.answer}{_TAIL}"


@dataclass(frozen=True, slots=True)
class Speaker:
    """How the probe talks: which model, how long texts have to be (tokens), how patiently (seconds)."""

    model: str
    tokens: int
    timeout_s: float

    def opening(self) -> str:
        """Return a prompt of at least `tokens` tokens that no cache has seen."""
        return f"kvdiag probe {secrets.token_hex(2 * self.tokens)}"

    def complete(
        self,
        service: Service,
        prompt: list[int] | str,
        *,
        limit: int | None = None,
        params: dict[str, Any] | None = None,
        conversation: str | None = None,
    ) -> Turn:
        """Send one completion; `limit` tokens at most, by default an answer long enough to be read back.

        A conversation is named in every way that routers are known to look for.

        Raises:
            BrokenLinkError: there was no answer, or an error.

        """
        wanted = limit or min(self.tokens, _LONGEST_ANSWER)
        body: dict[str, Any] = {"model": self.model, "prompt": prompt, "max_tokens": wanted, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True} | ({PARAMS: params} if params else {})
        headers = {}
        if conversation:
            body["conversation_id"] = conversation
            headers = {"X-Conversation-ID": conversation, "X-Session-ID": conversation}
        return _turn(prompt, self._post(service, _COMPLETIONS, body, headers).json())

    def chat(self, service: Service, params: dict[str, Any], *, stream: bool) -> dict[str, Any]:
        """Send a chat of one message; return the handle in the answer, in whichever chunk it comes."""
        message = {"role": "user", "content": self.opening()}
        body = {"model": self.model, "messages": [message], "max_tokens": 4, "stream": stream, PARAMS: params}
        answer = self._post(service, _CHAT, body, {})
        bodies = _events(answer.body) if stream else iter([answer.json()])
        return next((found for body in bodies if (found := _params(body))), {})

    def _post(self, service: Service, path: str, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        named = {"X-Request-Id": probe_id()} | headers
        try:
            answer = service.server.post(path, body, self.timeout_s, named)
        except NoAnswerError as error:
            raise BrokenLinkError(f"{service.name}: {error}", "upstream_error") from error
        if answer.status != 200:
            raise BrokenLinkError(f"{service.name} answered {answer.status}: {_complaint(answer)}", "upstream_error")
        return answer


def _turn(prompt: list[int] | str, body: dict[str, Any]) -> Turn:
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    sent, said = choice.get("prompt_token_ids"), choice.get("token_ids")
    if isinstance(sent, list) and isinstance(said, list):
        return Turn(sent, said, _params(body))
    return Turn(prompt, str(choice.get("text", "")), _params(body))


def _params(body: dict[str, Any]) -> dict[str, Any]:
    params = body.get(PARAMS)
    return params if isinstance(params, dict) else {}


def _events(stream: bytes) -> Iterator[dict[str, Any]]:
    for line in stream.split(b"\n"):
        if not line.startswith(b"data:"):
            continue
        try:
            event = json.loads(line[5:])
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def _complaint(answer: Answer) -> str:
    error = answer.json().get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or answer.body[:200].decode("utf-8", "replace")).strip()[:200]
