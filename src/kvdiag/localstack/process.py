"""Processes of the local stack: started in a group of their own, always stopped by pid."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import random
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kvdiag.errors import InputError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

HOST: Final = "127.0.0.1"
GRACE_S: Final = 15.0
_PROGRESS_EVERY_S: Final = 5.0
_TAIL_BYTES: Final = 65536

PORTS: Final = range(20_000, 32_000)
"""Below Linux's `ip_local_port_range`."""
_ports = itertools.islice(itertools.cycle(PORTS), random.SystemRandom().randrange(len(PORTS)), None)


def free_port() -> int:
    """Return a port that nothing listens on, below those that the system takes for outgoing connections.

    An engine binds its ports half a minute after they were chosen: a port of the system's own range was seen to be some
    client's by then. Successive calls give different ports.
    """
    for port in itertools.islice(_ports, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise UnavailableError(f"no free port between {PORTS.start} and {PORTS.stop}; stop what listens there")


def require_port(port: int, what: str) -> None:
    """Raise InputError when somebody listens on the port already."""
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            raise InputError(f"port {port} for {what} is taken; stop what listens there or choose another port")


def get(port: int, path: str, timeout: float = 5.0) -> tuple[int, bytes]:
    """Return status and body of a GET on this machine."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@dataclass
class Service:
    """One server process: command line, log file, and where it answers when healthy."""

    name: str
    command: Sequence[str | Path]
    log: Path
    port: int
    health_path: str = "/health"
    environment: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """Return the base URL."""
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Return the pid while the process runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Start the process; its output is appended to the log."""
        require_port(self.port, self.name)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(part) for part in self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )

    def wait_healthy(self, timeout: float, progress: Callable[[str], None] = lambda _: None) -> None:
        """Wait for health; raise UnavailableError naming the log when the process ends or takes too long."""
        began = reported = time.monotonic()
        while not self._healthy():
            now = time.monotonic()
            self._raise_if_ended()
            if now - began > timeout:
                raise UnavailableError(f"{self.name} was not healthy within {timeout:.0f} s; read {self.log}")
            if now - reported >= _PROGRESS_EVERY_S:
                reported = now
                progress(f"waiting for {self.name} ({now - began:.0f} s, log {self.log})")
            time.sleep(0.2)

    def _healthy(self) -> bool:
        try:
            return get(self.port, self.health_path)[0] == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    def _raise_if_ended(self) -> None:
        if self._process is None:
            raise UnavailableError(f"{self.name} was never started")
        if (code := self._process.poll()) is not None:
            raise UnavailableError(f"{self.name} ended with code {code}: {self._last_error()}; read {self.log}")

    def _last_error(self) -> str:
        lines = self.log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").splitlines()
        errors = [line for line in lines if "Error" in line or "error:" in line]
        return (errors or lines or ["it wrote nothing"])[-1].strip()[:300]

    def stop(self, grace: float = GRACE_S) -> None:
        """End the process and everything that it started."""
        if self._process is None:
            return
        # Only the leader is asked, as a container runtime does: an engine core that is told too dies under its server.
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        self.kill()

    def kill(self) -> None:
        """End the whole process group at once, as a crash would."""
        if self._process is None:
            return
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._process = None

    def freeze(self) -> None:
        """Stop the process and everything that it started, as a hypervisor does that moves it."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let everything go on that was frozen."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        # The group outlives its leader while an engine core still runs in it.
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
