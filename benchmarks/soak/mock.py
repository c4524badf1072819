"""Router and log exporter under many turns of many conversations, on mock engines."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.pairs import cpu_seconds
from benchmarks.soak.account import Account, turn_log_lines
from benchmarks.soak.watch import Course, counted, objects, resident_mib

from kvdiag.diagnosis.casebook import MAX_TURNS
from kvdiag.errors import UnavailableError
from kvdiag.localstack.process import HOST, Service, free_port, get

if TYPE_CHECKING:
    from collections.abc import Callable

_ROUTER: Final = Path(__file__).parents[1] / "router"
_SETTLE_S: Final = 1.0
_CAUGHT_UP_S: Final = 300.0


@dataclass(frozen=True)
class Size:
    """How much there is to do."""

    turns: int = 100_000
    conversations: int = 20_000
    streams: int = 256


@dataclass
class MockRig:
    """Mock engines, a router before them and an exporter that follows its turn log."""

    folder: Path
    engines: Service = field(init=False)
    router: Service = field(init=False)
    exporter: Service = field(init=False)

    def __post_init__(self) -> None:
        self.decode = free_port()
        self.counts: dict[str, Path] = {}
        prefill = free_port()
        ports = ("--p-port", str(prefill), "--d-port", str(self.decode))
        self.engines = Service(
            "engines", [sys.executable, _ROUTER / "mock_pd.py", *ports], self.folder / "engines.log", self.decode
        )
        self.turn_log = self.folder / "turns.jsonl"
        upstreams = ("--prefill", f"http://{HOST}:{prefill}", "--decode", f"http://{HOST}:{self.decode}")
        self.router = self._counted("router", "--turn-log", str(self.turn_log), *upstreams)
        self.exporter = self._counted("export", str(self.turn_log), "--settle", str(_SETTLE_S))

    def _counted(self, verb: str, *arguments: str) -> Service:
        port, count = free_port(), self.folder / f"{verb}.objects"
        self.counts[verb] = count
        listen = ("--port", str(port)) if verb == "router" else ("--listen", f"{HOST}:{port}")
        command: list[str | Path] = [sys.executable, "-m", "benchmarks.soak.counted", count, verb, *listen, *arguments]
        # Rotation would hide turns from whoever follows the file by name too slowly; what is tested is the router.
        environment = {"KVDIAG_ROUTER__TURN_LOG_MAX_BYTES": str(1 << 30)} if verb == "router" else {}
        health = "/readyz" if verb == "router" else "/metrics"
        return Service(verb, command, self.folder / f"{verb}.log", port, health_path=health, environment=environment)

    def start(self, unwind: ExitStack) -> None:
        for service in (self.engines, self.router):
            self._start(service, unwind)
        self.turn_log.touch()
        self._start(self.exporter, unwind)
        self._await_counting()
        get(self.decode, "/_set?chunks=5&delay_ms=20")

    def _await_counting(self) -> None:
        """Wait for the exporter's word: it serves metrics a moment before it counts, and skips what came until then."""
        deadline = time.monotonic() + 60
        while "metrics on" not in self.exporter.log.read_text():
            if time.monotonic() > deadline:
                raise UnavailableError(f"the exporter did not begin to count; read {self.exporter.log}")
            time.sleep(0.05)

    @staticmethod
    def _start(service: Service, unwind: ExitStack) -> None:
        service.start()
        unwind.callback(service.stop)
        service.wait_healthy(60)

    def stats(self) -> dict[str, int]:
        found: dict[str, int] = json.loads(get(self.decode, "/_stats")[1])
        return found

    def costs(self, turns: int) -> list[tuple[str, str]]:
        """Return the CPU that each process has taken since its start, by turn."""
        pids = [(service.name, service.pid) for service in (self.router, self.exporter)]
        return [(f"{name}, CPU ms a turn", f"{cpu_seconds(pid) / turns * 1e3:.2f}") for name, pid in pids if pid]

    def weigh(self, courses: dict[str, Course]) -> None:
        """Look once at what the processes hold."""
        for service in (self.router, self.exporter):
            assert service.pid is not None
            courses[f"{service.name}, MiB"].values.append(resident_mib(service.pid))
            courses[f"{service.name}, objects"].values.append(objects(service.pid, self.counts[service.name]))


def run(size: Size, folder: Path, progress: Callable[[str], None]) -> Account:
    """Return the account of a run of this size; logs lie in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    # The exporter has details of so many turns at most, and the ids of more: until then it fills.
    fills = size.turns < 5 * MAX_TURNS
    courses = {
        name: Course(name, allowance)
        for verb, allowance in (("router", 0.05), ("export", math.inf if fills else 0.10))
        for name in (f"{verb}, MiB", f"{verb}, objects")
    }
    with ExitStack() as unwind:
        rig = MockRig(folder)
        rig.start(unwind)
        sent = _load(rig, size, courses, progress)
        time.sleep(_SETTLE_S)
        account = _account(rig, size, sent)
        account.notes += rig.costs(size.turns)
    account.courses += courses.values()
    return account


def _load(rig: MockRig, size: Size, courses: dict[str, Course], progress: Callable[[str], None]) -> dict[str, int]:
    command = [sys.executable, str(_ROUTER / "load.py"), "--port", str(rig.router.port), "--warmup", "0"]
    command += ["--conc", str(size.streams), "--turns", str(size.turns), "--conversations", str(size.conversations)]
    looks = 30
    with subprocess.Popen(command, stdout=subprocess.PIPE) as load:
        while load.poll() is None:
            done = rig.stats()["d"]
            if done >= size.turns * len(courses["router, MiB"].values) // looks:
                rig.weigh(courses)
                progress(f"{done} turns, " + ", ".join(f"{c.name} {c.values[-1]:,.0f}" for c in courses.values()))
            time.sleep(0.1)
        assert load.stdout is not None
        result = json.loads(load.stdout.read())
    rig.weigh(courses)
    progress(f"{result}")
    return {"sent": result["sent"], "answered": result["n"]}


def _account(rig: MockRig, size: Size, load: dict[str, int]) -> Account:
    account, sent, stats, router = Account(), load["sent"], rig.stats(), rig.router.port
    live = min(sent, size.conversations)
    account.enter("turns sent", size.turns, sent)
    account.enter("turns answered in full", sent, load["answered"])
    account.enter("`kvdiag_turns_total` of the router", sent, counted(router, "kvdiag_turns_total"))
    account.enter("lines of the turn log", sent, _lines(rig, sent))
    account.enter("`kvdiag_turns_total` of the log exporter", sent, _exported(rig, sent))
    account.enter("calls of prefill", sent, stats["p"])
    account.enter("calls of decode", sent, stats["d"])
    account.enter("handles sent to prefill (all later turns)", sent - live, stats["p_with_handle"])
    account.enter("handles sent twice", 0, stats["twice"])
    account.enter("handles that decode still holds (one a conversation)", live, stats["unread"])
    account.enter("handles that the router holds", live, counted(router, "kvdiag_router_handles"))
    account.enter("records dropped", 0, counted(router, "kvdiag_dropped_events_total"))
    return account


def _lines(rig: MockRig, expected: int) -> int:
    deadline = time.monotonic() + _CAUGHT_UP_S
    while (lines := turn_log_lines(rig.folder)) < expected and time.monotonic() < deadline:
        time.sleep(0.2)
    return lines


def _exported(rig: MockRig, expected: int) -> float:
    deadline = time.monotonic() + _CAUGHT_UP_S
    while (turns := counted(rig.exporter.port, "kvdiag_turns_total")) < expected and time.monotonic() < deadline:
        time.sleep(0.5)
    return turns
