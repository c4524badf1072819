"""A real prefill/decode pair for minutes, with the faults of a bad day mixed in."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from benchmarks.soak.account import Account, turn_log_lines
from benchmarks.soak.watch import Course, counted, resident_mib
from benchmarks.words import say

from kvdiag.localstack import EngineOptions, LocalStack, StackOptions
from kvdiag.localstack.agent import Agent, complete
from kvdiag.localstack.engine import MODEL_NAME
from kvdiag.localstack.process import HOST
from kvdiag.localstack.stack import START_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvdiag.localstack import Service

AGENTS: Final = 6
TTL_S: Final = 12
BLOCKS: Final = 192
"""Of each engine's cache: all of its pages are touched within the first minutes."""
_SETTLE_S: Final = 60.0
_LOOK_EVERY_S: Final = 5.0
_FROZEN_S: Final = 4.0
_BEHAVIOURS: Final = {"goes on": 12, "pauses": 2, "forks": 2, "edits": 2, "hangs up": 1, "starts over": 2}
"""What an agent does next, with its weight."""


@dataclass
class Day:
    """What all agents of a run share: the router, the time, and what they did."""

    port: int
    over: threading.Event = field(default_factory=threading.Event)
    sent: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    problems: list[BaseException] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, behaviour: str, status: str) -> None:
        """Count a request that was sent."""
        with self._lock:
            self.sent[behaviour] += 1
            self.statuses[status] += 1

    def run(self, seed: int) -> None:
        """Be one agent until the day is over."""
        try:
            visitor = Visitor(self, random.Random(seed))
            while not self.over.is_set():
                visitor.act()
        except Exception as error:  # noqa: BLE001 - told at the end, by whoever counts
            self.problems.append(error)


class Visitor:
    """One agent whose manners change from turn to turn."""

    def __init__(self, day: Day, chance: random.Random) -> None:
        self._day = day
        self._chance = chance
        self._start_over()

    def act(self) -> None:
        """Send one turn, or two at a time for a fork."""
        behaviour = self._chance.choices(list(_BEHAVIOURS), list(_BEHAVIOURS.values()))[0]
        if behaviour == "starts over" or len(self._agent.messages) > 12:
            self._start_over()
        if behaviour == "pauses":
            self._day.over.wait(TTL_S + 1)
        if behaviour == "edits" and self._agent.messages:
            self._agent.messages[0] = {"role": "user", "content": say(self._chance, 150)}
        if behaviour == "forks":
            self._fork()
        elif behaviour == "hangs up":
            self._hang_up()
        else:
            self._turn(behaviour)

    def _start_over(self) -> None:
        name = f"{self._chance.getrandbits(64):x}"
        self._agent = Agent(self._day.port, name, stream=self._chance.random() < 0.7, parameters={"max_tokens": 16})

    def _words(self) -> str:
        return say(self._chance, 200 if not self._agent.messages else 60)

    def _turn(self, behaviour: str) -> None:
        answer = self._agent.say(self._words())
        self._day.note(behaviour, str(answer.status))
        if answer.status != http.client.OK:
            self._day.over.wait(1)
            self._start_over()

    def _fork(self) -> None:
        """Send the same history twice at a time, as a hedging client does."""
        messages = [*self._agent.messages, {"role": "user", "content": self._words()}]
        headers = {"X-Conversation-ID": self._agent.conversation or ""}

        def send() -> None:
            answer = complete(self._day.port, messages, headers=headers, max_tokens=8, stream=True)
            self._day.note("forks", str(answer.status))

        other = threading.Thread(target=send)
        other.start()
        send()
        other.join()

    def _hang_up(self) -> None:
        messages = [*self._agent.messages, {"role": "user", "content": self._words()}]
        body: dict[str, Any] = {"model": MODEL_NAME, "messages": messages, "stream": True, "max_tokens": 200}
        body["ignore_eos"] = True
        headers = {"content-type": "application/json", "X-Conversation-ID": self._agent.conversation or ""}
        connection = http.client.HTTPConnection(HOST, self._day.port, timeout=180)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        response.readline()
        # Closing the connection alone would leave the socket open as long as the response lives.
        response.close()
        connection.close()
        self._day.note("hangs up", "hung up" if response.status == http.client.OK else str(response.status))


def run(seconds: float, folder: Path, progress: Callable[[str], None]) -> Account:
    """Return the account of a run of so many seconds; logs lie in `folder`."""
    small = ("--num-gpu-blocks-override", str(BLOCKS))
    engine = EngineOptions(decode_ttl_s=TTL_S, arguments=small)
    options = StackOptions(
        prefill=EngineOptions(decode_ttl_s=TTL_S, arguments=small, prefix_caching=False),
        decode=engine,
        # As long as decode keeps blocks: some handles come too late, which has to be survived.
        router_arguments=("--handle-ttl", str(TTL_S)),
    )
    with LocalStack(folder, options, progress=progress) as running:
        assert running.router is not None
        day = Day(running.router.port)
        agents = [threading.Thread(target=day.run, args=(seed,)) for seed in range(AGENTS)]
        for agent in agents:
            agent.start()
        try:
            courses, drops = _watch(running, day, seconds, progress)
        finally:
            day.over.set()
            for agent in agents:
                agent.join()
        if day.problems:
            raise day.problems[0]
        progress(f"sent: {dict(day.sent)}; answers: {dict(day.statuses)}")
        account = _account(running.router, folder, day.sent.total())
        account.enter("events dropped", 0, drops + _drops(running))
        account.courses += courses
    return account


def _watch(
    running: LocalStack, day: Day, seconds: float, progress: Callable[[str], None]
) -> tuple[list[Course], float]:
    """Look at the processes until time is up; in between freeze decode once, and kill it once. Return decode's drops too."""
    assert running.router is not None
    (decode,), (prefill,) = running.decodes, running.prefills
    began, dropped = time.monotonic(), 0.0
    upheavals = [(0.2, "freeze"), (0.3, "kill")]
    services = {"router": running.router, "prefill": prefill, "decode since its restart": decode}
    courses = {name: Course(f"{name}, MiB", 0.05) for name in services}
    while (elapsed := time.monotonic() - began) < seconds:
        if upheavals and elapsed > upheavals[0][0] * seconds:
            kind = upheavals.pop(0)[1]
            progress(f"{elapsed:.0f} s: {kind} decode")
            if kind == "freeze":
                decode.freeze()
                time.sleep(_FROZEN_S)
                decode.thaw()
            else:
                dropped = counted(decode.port, "kvdiag_dropped_events_total")
                _restart(decode)
                courses["decode since its restart"].values.clear()
        for name, service in services.items():
            assert service.pid is not None
            courses[name].values.append(resident_mib(service.pid))
        progress(f"{elapsed:.0f} s, {day.sent.total()} turns, " + _weights(courses))
        day.over.wait(_LOOK_EVERY_S)
    return list(courses.values()), dropped


def _restart(decode: Service) -> None:
    decode.kill()
    decode.start()
    decode.wait_healthy(START_TIMEOUT_S)


def _weights(courses: dict[str, Course]) -> str:
    return ", ".join(f"{course.name} {course.values[-1]:.0f}" for course in courses.values())


def _drops(running: LocalStack) -> float:
    services = [*running.prefills, *running.decodes, *([running.router] if running.router else [])]
    return sum(counted(service.port, "kvdiag_dropped_events_total") for service in services)


def _account(router: Service, folder: Path, sent: int) -> Account:
    account, deadline = Account(), time.monotonic() + _SETTLE_S
    while (turns := counted(router.port, "kvdiag_turns_total")) < sent and time.monotonic() < deadline:
        time.sleep(0.5)  # the router still notices that a client hung up
    while (lines := turn_log_lines(folder)) < sent and time.monotonic() < deadline:
        time.sleep(0.2)
    account.enter("`kvdiag_turns_total` of the router, against requests sent", sent, turns)
    account.enter("lines of the turn log", sent, lines)
    account.enter("handles claimed twice", 0, _claimed_twice(folder))
    return account


def _claimed_twice(folder: Path) -> int:
    """Return how many of prefill's reads named a request of decode that had been read before."""
    read: Counter[str] = Counter()
    for line in (folder / "prefill-events.jsonl").read_bytes().splitlines():
        event = json.loads(line)
        if event["kind"] == "transfer" and event.get("direction") == "decode_to_prefill":
            read[event["remote_request_id"]] += 1
    return sum(count - 1 for count in read.values())
