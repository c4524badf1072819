"""`python -m kvdiag.localstack.talk URL`: an agent on the command line, well behaved or not.

What the runbooks' "How to reproduce here" sends to a local stack. One URL is a router; two URLs are a prefill and a decode
engine, which are then driven by hand, decode's handle carried from turn to turn.
"""

from __future__ import annotations

import http.client
import itertools
import json
import secrets
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import click

from kvdiag.errors import InputError
from kvdiag.localstack.agent import Answer, complete
from kvdiag.localstack.engine import MODEL_NAME
from kvdiag.localstack.process import HOST

WORDS: Final = "open the file read the function edit the line run the test and report the result then go on"
Handle = dict[str, Any]


@dataclass(frozen=True)
class Manner:
    """How an agent behaves."""

    words: int = 300
    """Length of each message."""
    last_words: int | None = None
    """Length of the last message."""
    max_tokens: int = 24
    whole: bool = False
    """Whether answers come in one piece; streamed ones have a time to first token."""
    edits: bool = False
    """Whether the first message changes before the last turn."""
    hangs_up: bool = False
    """Whether the client leaves after the first token of the last turn."""
    abandons: bool = False
    """By hand: whether the last turn is never sent to decode."""
    pause_s: float = 0.0
    """Before each later turn."""
    before_last: str = ""
    """A shell command, run right before the last turn."""
    change: Handle = field(default_factory=dict)
    """By hand: what replaces parts of the handle in the last turn."""


class Talk:
    """One conversation."""

    def __init__(self, ports: tuple[int, ...], conversation: str | None, manner: Manner) -> None:
        self._ports = ports
        self._headers = {"X-Conversation-ID": conversation} if conversation else {}
        self._manner = manner
        self._mark = secrets.token_hex(4)
        """Makes this conversation unlike any before: prefix caches outlive it."""
        self._messages: list[dict[str, str]] = []
        self._handle: Handle = {}

    def take(self, turns: int) -> None:
        """Take so many turns and print how each one ended."""
        for number in range(1, turns + 1):
            last = number == turns
            if number > 1:
                time.sleep(self._manner.pause_s)
            if last:
                self._misbehave()
            self._messages.append({"role": "user", "content": self._text(number, last=last)})
            began = time.monotonic()
            status, text = self._ask(last=last)
            click.echo(f"turn {number}: {status} in {time.monotonic() - began:.1f} s")
            self._messages.append({"role": "assistant", "content": text})

    def _misbehave(self) -> None:
        manner = self._manner
        if manner.edits and self._messages:
            self._messages[0] = {"role": "user", "content": f"Corrected. {self._messages[0]['content']}"}
        _replace(self._handle, manner.change)
        if manner.before_last:
            subprocess.run(["/bin/sh", "-c", manner.before_last], check=True)

    def _text(self, number: int, *, last: bool) -> str:
        wanted = self._manner.words if not last else self._manner.last_words or self._manner.words
        words = itertools.islice(itertools.cycle(WORDS.split()), wanted)
        return " ".join([f"{self._mark}-{number}", *words])

    def _ask(self, *, last: bool) -> tuple[int | str, str]:
        if last and self._manner.hangs_up:
            return self._leave(), ""
        answer = self._by_hand(abandon=last and self._manner.abandons) if len(self._ports) > 1 else self._routed()
        return answer.status, answer.text

    def _routed(self) -> Answer:
        stream, limit = not self._manner.whole, self._manner.max_tokens
        return complete(self._ports[0], self._messages, headers=self._headers, stream=stream, max_tokens=limit)

    def _by_hand(self, *, abandon: bool) -> Answer:
        prefill, decode = self._ports
        params = self._handle | {"do_remote_decode": True, "do_remote_prefill": False}
        prefilled = complete(prefill, self._messages, max_tokens=1, kv_transfer_params=params)
        if abandon or prefilled.status != http.client.OK:
            return prefilled
        handed = _handle_of(prefilled)
        answer = complete(decode, self._messages, max_tokens=self._manner.max_tokens, kv_transfer_params=handed)
        self._handle = _handle_of(answer)
        return answer

    def _leave(self) -> str:
        """Hang up as soon as the answer begins."""
        connection = http.client.HTTPConnection(HOST, self._ports[0], timeout=180)
        body = {"model": MODEL_NAME, "messages": self._messages, "stream": True, "max_tokens": 2000, "ignore_eos": True}
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json", **self._headers}
        )
        connection.getresponse().readline()
        connection.close()
        return "hung up"


def _handle_of(answer: Answer) -> Handle:
    return dict((answer.body or {}).get("kv_transfer_params") or {})


def _replace(handle: Handle, change: Handle) -> None:
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(handle.get(key), dict):
            _replace(handle[key], value)
        else:
            handle[key] = value


def _port(url: str) -> int:
    port = urlsplit(url).port
    if port is None:
        raise InputError(f"{url!r} has no port; write http://127.0.0.1:8000")
    return port


@click.command()
@click.argument("urls", nargs=-1, required=True)
@click.option("--turns", default=2, show_default=True)
@click.option("--agents", default=1, show_default=True, help="Conversations at the same time.")
@click.option("--anonymous", is_flag=True, help="Send no conversation id.")
@click.option("--words", default=Manner.words, show_default=True, help="Length of each message.")
@click.option("--last-words", type=int, help="Length of the last message.")
@click.option("--max-tokens", default=Manner.max_tokens, show_default=True)
@click.option("--whole", is_flag=True, help="Answers in one piece; else streamed.")
@click.option("--edits", is_flag=True, help="Change the first message before the last turn.")
@click.option("--hangs-up", is_flag=True, help="Leave when the last answer begins.")
@click.option("--abandons", is_flag=True, help="By hand: never send the last turn to decode.")
@click.option("--pause", "pause_s", default=0.0, metavar="S", help="Before each later turn.")
@click.option("--before-last", default="", metavar="COMMAND", help="Run right before the last turn.")
@click.option("--change", default="{}", metavar="JSON", help="By hand: replaces parts of the last turn's handle.")
def main(urls: tuple[str, ...], turns: int, agents: int, change: str, *, anonymous: bool, **manner: Any) -> None:  # noqa: ANN401 - flags
    """Talk to a router, or to PREFILL and DECODE by hand."""
    ports = tuple(map(_port, urls))
    behaviour = Manner(change=json.loads(change), **manner)
    names = [None if anonymous else f"talk-{secrets.token_hex(4)}" for _ in range(agents)]
    talks = [threading.Thread(target=Talk(ports, name, behaviour).take, args=(turns,)) for name in names]
    for talk in talks:
        talk.start()
    for talk in talks:
        talk.join()


if __name__ == "__main__":
    main()
