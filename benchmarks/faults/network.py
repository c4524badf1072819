"""The network between the engines, made worse on purpose: inside a network namespace of the run's own, nowhere else."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from benchmarks.faults.engines import UNPLUGGED_HOST

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MARK: Final = "KVDIAG_FAULTS_NAMESPACE"
# The loopback interface hands packets of up to 64 KiB to a queue; real ones, and the token bucket, take 1500 bytes.
_MTU: Final = "1500"


def enter(program: str = "benchmarks.faults") -> bool:
    """Run this program (`python -m`) anew in a network namespace of its own; return False where that is not permitted."""
    if _MARK in os.environ:
        return True
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--net", "true"], check=False).returncode:
        return False
    os.environ |= {_MARK: "1", "VLLM_HOST_IP": "127.0.0.1"}
    command = ["unshare", "--net", sys.executable, "-m", program, *sys.argv[1:]]
    os.execvp(command[0], command)
    raise AssertionError("execvp does not return")


def prepare() -> None:
    """Bring the loopback interface up, with a second address for what will be unplugged."""
    _ip("link", "set", "lo", "up", "mtu", _MTU)
    _ip("address", "add", f"{UNPLUGGED_HOST}/32", "dev", "lo")


@contextlib.contextmanager
def unplugged() -> Iterator[None]:
    """Take the second address away."""
    _ip("address", "del", f"{UNPLUGGED_HOST}/32", "dev", "lo")
    try:
        yield
    finally:
        _ip("address", "add", f"{UNPLUGGED_HOST}/32", "dev", "lo")


@contextlib.contextmanager
def slow(rate: str) -> Iterator[None]:
    """Let everything share so much bandwidth, in the words of `tc`."""
    _run("tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", rate, "burst", "256kb", "latency", "2s")
    try:
        yield
    finally:
        _run("tc", "qdisc", "del", "dev", "lo", "root")


def reset(*but: int) -> None:
    """Reset every open connection, as a firewall does that forgets its state, except those of some ports."""
    spared = " and ".join(f"sport != :{port} and dport != :{port}" for port in but)
    # Listening sockets cannot be reset; `ss` complains of them and resets the others.
    subprocess.run(["ss", "--no-header", "--kill", "state", "established", spared], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    if _MARK not in os.environ:
        raise RuntimeError(f"{' '.join(command)} belongs into a network namespace of the run's own")
    _check(command)


def _check(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)
