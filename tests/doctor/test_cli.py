"""`kvdiag doctor` and `kvdiag watch` from the command line."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from kvdiag.cli import main

from .conftest import Engine, Fake, Router

if TYPE_CHECKING:
    from collections.abc import Callable

    Serve = Callable[[Fake], Fake]

NOBODY = "http://127.0.0.1:9"


def run(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def urls(
    serve: Serve, router: Fake | None = None, prefill: Fake | None = None, decode: Fake | None = None
) -> list[str]:
    router, prefill = serve(router or Router()), serve(prefill or Engine())
    decode = serve(decode or Engine(role="decode"))
    return ["--router", router.url, "--prefill", prefill.url, "--decode", decode.url]


def test_a_healthy_site_is_clear(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", *urls(serve)) == 0
    out = capsys.readouterr().out
    assert "problem" not in out
    assert "second turn was read back" in out


def test_a_problem_is_a_finding_with_its_remedy(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", *urls(serve, router=Router(ttl=480))) == 1
    out = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(out) if line.startswith("problem"))
    assert "ttl_order" in out[at]
    assert "-> set the router's handle TTL below" in out[at + 1]


def test_swapped_roles_are_a_problem_with_the_remedy(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    prefill, decode = serve(Engine()), serve(Engine(role="decode"))
    assert run("doctor", "--prefill", decode.url, "--decode", prefill.url) == 1
    assert "-> swap the URLs of --prefill and --decode" in capsys.readouterr().out


def test_without_a_proof_it_is_inconclusive(serve: Serve) -> None:
    assert run("doctor", *urls(serve), "--no-probe") == 3


def test_nobody_there_is_unavailable(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", "--router", NOBODY) == 4
    assert capsys.readouterr().err == f"kvdiag: router {NOBODY}: Connection refused\n"


def test_something_else_is_said_to_be_no_router(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    other = serve(Fake(pages={"/metrics": "prometheus_build_info 1\n"}))
    assert run("doctor", "--router", other.url) == 4
    assert f"router {other.url}: neither an engine nor kvdiag's router" in capsys.readouterr().err


def test_something_else_beside_engines_is_a_problem_of_one_line(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Fake(pages={"/metrics": "prometheus_build_info 1\n"})
    other.answer = lambda _path, _body, _headers: (404, "404 page\nnot found\n")
    assert run("doctor", *urls(serve, router=other)) == 1
    out = capsys.readouterr().out
    assert f"empty or foreign: router {other.url}" in out
    assert "answered 404: 404 page not found" in out


def test_one_service_down_is_a_problem(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", "--router", serve(Router()).url, "--prefill", NOBODY) == 1
    assert "Connection refused" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["doctor", "watch"])
@pytest.mark.parametrize("arguments", [(), ("--router", "ftp://x"), ("--decode", "http://h:99999"), ("--nonsense",)])
def test_bad_usage_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], verb: str, arguments: tuple[str, ...]
) -> None:
    assert run(verb, *arguments) == 2
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert said.out == ""


def test_json_is_one_document(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    run("doctor", *urls(serve), "--format", "json")
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "kvdiag.doctor/1"
    assert {check["state"] for check in document["checks"]} == {"ok"}
    assert {"check", "state", "seen", "remedy"} == set(document["checks"][0])


def test_hostile_answers_are_neutralised(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    router = Router()
    router.answer = lambda _path, _body, _headers: (500, '{"error":{"message":"\\u001b]0;owned\\u0007"}}')
    run("doctor", "--router", serve(router).url, "--model", "tiny")
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\\x1b]0;owned" in out


def test_the_api_key_comes_from_the_environment(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVDIAG_API_KEY", "key")
    router = serve(Router())
    run("doctor", "--router", router.url, "--model", "tiny")
    assert {headers["authorization"] for _, _, headers in router.asked} == {"Bearer key"}


def test_doctor_runs_as_a_process(serve: Serve) -> None:
    command = [sys.executable, "-m", "kvdiag", "doctor", *urls(serve)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_watch_shows_one_frame(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("watch", *urls(serve, router=Router(turns=5)), "--once", "--interval", "0.1") == 0
    out = capsys.readouterr().out
    assert "0 turns/s" in out
    assert "remote_hit" in out
    assert "decode 127.0.0.1" in out


def test_watch_names_what_is_down(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    run("watch", "--router", serve(Router()).url, "--prefill", NOBODY, "--once", "--interval", "0.1")
    assert f"down: prefill {NOBODY}" in capsys.readouterr().out


def test_watch_needs_somebody_at_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("watch", "--router", NOBODY) == 4
    assert "Connection refused" in capsys.readouterr().err


@pytest.mark.parametrize("page", [404, "python_info 1\n", "<html>"])
def test_watch_refuses_what_is_neither_vllm_nor_ours(
    serve: Serve, capsys: pytest.CaptureFixture[str], page: str | int
) -> None:
    assert run("watch", "--prefill", serve(Fake(pages={"/metrics": page})).url, "--once") == 4
    assert "no metrics of vLLM or kvdiag" in capsys.readouterr().err


def test_watch_piped_prints_a_line_a_frame_until_interrupted(serve: Serve) -> None:
    command = [sys.executable, "-m", "kvdiag", "watch", *urls(serve), "--interval", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        lines = [watching.stdout.readline() for _ in range(3)]
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=20)
    assert all(line.startswith("turns_per_s=0 reused=? ") for line in lines)
    assert (watching.returncode, err) == (0, "")


@pytest.mark.parametrize(("columns", "whole"), [("120", True), ("80", False)])
def test_watch_redraws_on_a_terminal_until_interrupted(serve: Serve, columns: str, *, whole: bool) -> None:
    named = urls(serve, router=Router(turns=5))
    command = [sys.executable, "-m", "kvdiag", "watch", *named, "--interval", "0.1"]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": columns, "LINES": "40"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as watching:
        os.close(theirs)
        seen = b""
        while seen.count(b"turns/s") < 2:
            seen += os.read(ours, 65536)
        watching.send_signal(signal.SIGINT)
        drain = threading.Thread(target=_drain, args=(ours,))
        drain.start()
        assert watching.wait(timeout=20) == 0
    drain.join(timeout=20)
    os.close(ours)
    assert b"\x1b[?1049h" in seen, "the alternate screen leaves what was there alone"
    engine = named[named.index("--decode") + 1].removeprefix("http://")
    assert f"decode {engine} ".encode() in seen
    assert (b"External" in seen) == whole


def _drain(terminal: int) -> None:
    with contextlib.suppress(OSError):  # EIO: the other side is closed
        while os.read(terminal, 65536):
            pass
