"""The agent on the command line, against a server that only remembers what it was sent."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from kvdiag.localstack.talk import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Engine:
    """Answers every request with a handle and notes who asked what."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.conversations: list[str | None] = []
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the signature of the base
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                engine.bodies.append(body)
                engine.conversations.append(self.headers["x-conversation-id"])
                choice = {"message": {"role": "assistant", "content": "done"}}
                handle = {"remote_port": 7, "kvdiag": {"issued_at": 1.0, "prefix": "x"}}
                answer = json.dumps({"choices": [choice], "kv_transfer_params": handle}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def said(self) -> list[list[str]]:
        """Return what the user said in each request."""
        return [[m["content"] for m in body["messages"] if m["role"] == "user"] for body in self.bodies]


@pytest.fixture
def engine() -> Iterator[Engine]:
    running = Engine()
    yield running
    running.server.shutdown()
    running.server.server_close()


def talk(*arguments: str) -> str:
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_a_conversation_keeps_its_name_and_grows(engine: Engine) -> None:
    output = talk(engine.url, "--whole", "--turns", "3", "--words", "5", "--last-words", "50")
    assert [line.split(" in ")[0] for line in output.splitlines()] == ["turn 1: 200", "turn 2: 200", "turn 3: 200"]
    assert len(set(engine.conversations)) == 1
    assert [len(texts) for texts in engine.said()] == [1, 2, 3]
    assert len(engine.said()[-1][-1].split()) > 50 > len(engine.said()[-1][0].split())


def test_no_two_conversations_are_alike(engine: Engine) -> None:
    talk(engine.url, "--whole", "--turns", "1", "--agents", "2")
    assert len(set(engine.conversations)) == len({texts[0] for texts in engine.said()}) == 2


def test_an_anonymous_agent_sends_no_name(engine: Engine) -> None:
    talk(engine.url, "--whole", "--anonymous")
    assert engine.conversations == [None, None]


def test_an_editor_changes_its_first_message_for_the_last_turn(engine: Engine) -> None:
    talk(engine.url, "--whole", "--turns", "3", "--edits")
    first = [texts[0] for texts in engine.said()]
    assert first[0] == first[1]
    assert first[2] == f"Corrected. {first[0]}"


def test_by_hand_the_handle_is_carried_and_changed_for_the_last_turn(engine: Engine) -> None:
    talk(engine.url, engine.url, "--turns", "2", "--change", '{"remote_port": 1, "kvdiag": {"issued_at": 9}}')
    params = [body["kv_transfer_params"] for body in engine.bodies]
    assert params[0] == {"do_remote_decode": True, "do_remote_prefill": False}
    assert params[2] == params[0] | {"remote_port": 1, "kvdiag": {"issued_at": 9, "prefix": "x"}}


def test_an_abandoned_turn_never_reaches_decode(engine: Engine) -> None:
    talk(engine.url, engine.url, "--turns", "1", "--abandons")
    assert len(engine.bodies) == 1


def test_a_command_runs_before_the_last_turn(engine: Engine, tmp_path: Path) -> None:
    talk(engine.url, "--whole", "--before-last", f"touch {tmp_path}/ran")
    assert (tmp_path / "ran").exists()


def test_hanging_up_reads_no_more_than_the_beginning(engine: Engine) -> None:
    assert talk(engine.url, "--turns", "1", "--hangs-up").startswith("turn 1: hung up")
