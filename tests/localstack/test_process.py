from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import pytest

from kvdiag.errors import InputError, UnavailableError
from kvdiag.localstack.process import HOST, Service, free_port, get


def web_server(folder: Path, port: int) -> Service:
    command = [sys.executable, "-m", "http.server", str(port), "--bind", HOST, "--directory", str(folder)]
    return Service("web", command, folder / "web.log", port, health_path="/")


def script(folder: Path, source: str) -> Service:
    return Service("script", [sys.executable, "-c", source], folder / "script.log", free_port())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def test_a_healthy_service_answers_and_stops(tmp_path: Path) -> None:
    service = web_server(tmp_path, free_port())
    service.start()
    service.wait_healthy(20)
    pid = service.pid
    assert pid is not None
    service.stop()
    assert not alive(pid)
    assert service.pid is None


def test_a_frozen_service_does_nothing_until_it_is_thawed(tmp_path: Path) -> None:
    service = web_server(tmp_path, free_port())
    service.start()
    try:
        service.wait_healthy(20)
        service.freeze()
        with pytest.raises(TimeoutError):
            get(service.port, "/", timeout=0.3)
        service.thaw()
        assert get(service.port, "/", timeout=20)[0] == 200
    finally:
        service.stop()


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} for web is taken"):
            web_server(tmp_path, port).start()


def test_a_service_that_ends_early_names_its_log_and_last_error(tmp_path: Path) -> None:
    service = script(tmp_path, "raise ValueError('no such flag')")
    service.start()
    with pytest.raises(UnavailableError, match=r"code 1: ValueError: no such flag; read .*script\.log"):
        service.wait_healthy(20)


def test_a_service_that_never_answers_times_out_and_reports_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvdiag.localstack.process._PROGRESS_EVERY_S", 0.1)
    said: list[str] = []
    service = script(tmp_path, "import time; time.sleep(60)")
    service.start()
    try:
        with pytest.raises(UnavailableError, match=r"was not healthy within 1 s; read .*script\.log"):
            service.wait_healthy(1, said.append)
    finally:
        service.stop()
    assert "waiting for script" in said[0]


def test_stop_ends_what_the_service_started_too(tmp_path: Path) -> None:
    child = tmp_path / "child.pid"
    source = (
        "import subprocess, sys, time, pathlib\n"
        "c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(child)!r}).write_text(str(c.pid))\n"
        "time.sleep(60)"
    )
    service = script(tmp_path, source)
    service.start()
    deadline = time.monotonic() + 20
    while not (child.exists() and child.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    pid = int(child.read_text())
    service.stop()
    # A signal takes effect when its target is next scheduled.
    deadline = time.monotonic() + 5
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(pid)


def test_ports_lie_outside_the_systems_own_range_and_are_given_once() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    assert not [port for port in ports if first <= port <= last]
