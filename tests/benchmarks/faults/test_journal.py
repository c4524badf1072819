"""Logs are cut where a scenario begins, and tell nothing of the machine that they come from."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.faults.journal import Journal, tidy

from kvdiag.localstack import Service

ARGUMENTS = "(APIServer pid=1) INFO 11-29 23:56:40 [api_utils.py:286] non-default args: {'model': '/models/tiny-1'}\n"
BANNER = "(APIServer pid=1) INFO 11-29 23:56:40 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0\n"
WEIGHTS = "(EngineCore pid=2) INFO 11-29 23:57:03 [default_loader.py:501] Loading weights took 0.02 seconds\n"
STARTED = "INFO:     Application startup complete.\n"
ANSWER = 'INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
HEALTH = 'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK\n'


def engine(folder: Path) -> Service:
    return Service("decode", ["true"], folder / "decode.log", 1)


def write(path: Path, text: str) -> None:
    with path.open("a", newline="") as file:
        file.write(text)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (BANNER + ARGUMENTS + WEIGHTS + STARTED, ARGUMENTS + STARTED),
        (ANSWER + HEALTH + ANSWER, ANSWER + ANSWER),
        (ANSWER + BANNER + WEIGHTS + ARGUMENTS + STARTED + WEIGHTS, ANSWER + ARGUMENTS + STARTED + WEIGHTS),
        ("first\r\nsecond\r\n", "first\r\nsecond\r\n"),
    ],
    ids=["a start", "health checks", "a restart in the middle", "records of several lines"],
)
def test_noise_goes_and_the_rest_stays(text: str, kept: str) -> None:
    assert tidy(text, Path("/run")) == kept


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (
            "/home/me/.venv/lib/python3.12/site-packages/vllm/v1/core.py",
            "/opt/vllm/lib/python3.11/site-packages/vllm/v1/core.py",
        ),
        ("/home/me/.pyenv/versions/3.12.1/lib/python3.12/queue.py", "/usr/lib/python3.11/queue.py"),
        ("/home/me/project/src/kvdiag/connector/worker.py", "/opt/kvdiag/src/kvdiag/connector/worker.py"),
        ("/run/engines/decode.log", "/var/log/kvdiag/engines/decode.log"),
        ("/elsewhere/engines/decode/decode-events.jsonl", "/var/log/kvdiag/engines/decode/decode-events.jsonl"),
        ("/home/me/stack0/decode-events.jsonl", "/var/log/kvdiag/decode-events.jsonl"),
    ],
)
def test_paths_of_this_machine_are_replaced(path: str, shown: str) -> None:
    assert tidy(f'File "{path}", line 1\n', Path("/run")) == f'File "{shown}", line 1\n'


def test_a_scenario_gets_the_last_start_and_what_came_since(tmp_path: Path) -> None:
    service, out = engine(tmp_path), tmp_path / "out"
    out.mkdir()
    write(service.log, ARGUMENTS.replace("tiny-1", "older") + STARTED + "earlier\n" + ARGUMENTS + STARTED + "before\n")
    journal = Journal.of(service)
    write(service.log, "since\r\n")
    journal.cut(out)
    assert (out / "decode.log").read_bytes().decode() == ARGUMENTS + STARTED + "since\r\n"


def test_an_event_log_that_was_never_written_is_left_out(tmp_path: Path) -> None:
    service, out = engine(tmp_path), tmp_path / "out"
    out.mkdir()
    write(service.log, ARGUMENTS)
    Journal.of(service).cut(out)
    assert [path.name for path in out.iterdir()] == ["decode.log"]
