"""The same agents for every TTL: when they come, what they say, how long they think."""

from __future__ import annotations

import http.client
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Final

from benchmarks.words import say

from kvdiag.localstack.agent import Agent

CONVERSATIONS_PER_S: Final = 0.33
TURNS: Final = 4
WORDS: Final = 1_500
"""Of the first message: about 1,600 tokens."""
MORE_WORDS: Final = 40
THINK_MEDIAN_S: Final = 6.0
THINK_SPREAD: Final = 0.8
"""Log-normal: 95 % think less than 23 s."""


@dataclass(frozen=True)
class Asked:
    """One turn, by the client's clock. Seconds; `ttft_s` means something where it was answered."""

    turn: int
    ttft_s: float
    answered: bool


@dataclass(frozen=True)
class Plan:
    """One conversation: when it begins and how long it thinks before each later turn, seconds."""

    begins_s: float
    thinks_s: tuple[float, ...]
    seed: int


def plans(duration_s: float, seed: int = 1) -> list[Plan]:
    """Return Poisson arrivals; equal seeds give equal plans."""
    chance, begins = random.Random(seed), 0.0
    found: list[Plan] = []
    while (begins := begins + chance.expovariate(CONVERSATIONS_PER_S)) < duration_s:
        thinks = tuple(THINK_MEDIAN_S * chance.lognormvariate(0, THINK_SPREAD) for _ in range(TURNS - 1))
        found.append(Plan(begins, thinks, len(found)))
    return found


@dataclass
class Crowd:
    """All agents of a run; they stop asking when time is up."""

    port: int
    until: float
    """time.monotonic() after which no turn begins."""
    asked: list[Asked] = field(default_factory=list)

    def run(self, duration_s: float) -> list[threading.Thread]:
        """Start every conversation at its time; return the threads, of which some may still wait for answers."""
        began, threads = time.monotonic(), []
        for plan in plans(duration_s):
            time.sleep(max(0.0, began + plan.begins_s - time.monotonic()))
            threads.append(threading.Thread(target=self._converse, args=(plan,), daemon=True))
            threads[-1].start()
        return threads

    def _converse(self, plan: Plan) -> None:
        chance = random.Random(plan.seed)
        agent = Agent(self.port, f"agent-{plan.seed}", stream=True, parameters={"max_tokens": 16, "ignore_eos": True})
        for turn, think_s in enumerate((0.0, *plan.thinks_s), 1):
            time.sleep(think_s)
            if time.monotonic() > self.until:
                return
            try:
                answer = agent.say(say(chance, WORDS if turn == 1 else MORE_WORDS))
            except (OSError, http.client.HTTPException, ValueError):
                self.asked.append(Asked(turn, 0.0, answered=False))
                return
            answered = answer.status == http.client.OK and answer.ttft_s > 0
            self.asked.append(Asked(turn, answer.ttft_s, answered))
            if not answered:
                return
