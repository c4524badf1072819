"""Runs pairs of conversations, reuse off and on, on one real prefill/decode pair."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
from benchmarks.article.turns import ARMS, TURNS, Arm, Arrangement, Turn
from benchmarks.words import say
from tokenizers import Tokenizer

from kvdiag.events import KvEvent, TurnRecord
from kvdiag.localstack import EngineOptions, LocalStack, Service, StackOptions, router_service
from kvdiag.localstack.agent import Agent
from kvdiag.localstack.model import ensure_model
from kvdiag.localstack.stack import model_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

LENGTHS: Final[dict[Arrangement, tuple[int, ...]]] = {
    "cold": (125, 250, 500, 2_000, 8_000, 20_000),
    "warm": (500, 2_000, 8_000, 20_000),
    "slow": (125, 250, 500, 1_000, 2_000, 4_000),
    "slower": (250, 500, 1_000, 2_000),
}
"""Tokens of first messages. The shortest ones are there to find where reuse stops to pay."""
RATES: Final[dict[Arrangement, str]] = {"slow": "100mbit", "slower": "10mbit"}
"""Of slow networks: a token's KV takes less time to move than to compute on the first, more on the second."""
CONVERSATIONS: Final = 5
MODEL: Final = "small"
_NEW_TOKENS: Final = 64
"""Of each later user message."""
_PARAMETERS: Final = {"max_tokens": 16, "ignore_eos": True}
_SETTLE_S: Final = 15.0


@dataclass(frozen=True)
class Pair:
    """Two conversations of the same shape, one in each arm."""

    length: int
    number: int

    @property
    def arms(self) -> Sequence[Arm]:
        """Return the arms in running order, which alternates: neither arm always comes second."""
        return ARMS if self.number % 2 == 0 else ARMS[::-1]


def stack(folder: Path, arrangement: Arrangement, progress: Callable[[str], None]) -> LocalStack:
    """Return the pair of engines; routers are started one a conversation."""
    # Short reads must happen if the experiment is to find where they stop to pay.
    common: dict[str, Any] = {"max_model_len": 24_576, "kv_cache_gib": 2, "recompute_threshold": 1}
    if arrangement in RATES:
        common["environment"] = {"UCX_TLS": "tcp,self"}
    options = StackOptions(
        prefill=EngineOptions(prefix_caching=arrangement == "warm", **common),
        decode=EngineOptions(**common),
        model=MODEL,
        router_arguments=None,
    )
    return LocalStack(folder, options, progress=progress)


class Experiment:
    """One arrangement, while its engines run."""

    def __init__(self, running: LocalStack, arrangement: Arrangement) -> None:
        self._running = running
        self._arrangement = arrangement
        self._tokenizer = Tokenizer.from_file(str(ensure_model(model_cache(), MODEL) / "tokenizer.json"))
        self._routers = 0

    def warm_up(self) -> None:
        """Let engines compile their kernels on a discarded pair of some length."""
        self.run(Pair(4_000, 0))

    def run(self, pair: Pair) -> list[Turn]:
        """Return the turns of both arms."""
        return [turn for arm in pair.arms for turn in self._converse(pair, arm)]

    def _converse(self, pair: Pair, arm: Arm) -> Iterator[Turn]:
        """Run one conversation through a router of its own: nothing is left of the other arm's handles."""
        self._routers += 1
        folder = self._running.folder / f"router-{self._routers}-{arm}-{pair.length}-{pair.number}"
        arguments = ("--holdout", "1") if arm == "off" else ()
        router = router_service(folder, self._running.prefills, self._running.decodes, arguments)
        router.start()
        try:
            router.wait_healthy(60)
            waits = self._talk(router, random.Random(f"{self._arrangement}{pair}{arm}"), pair.length)
        finally:
            router.stop()
        records = [
            msgspec.json.decode(line, type=TurnRecord) for line in (folder / "turns.jsonl").read_bytes().splitlines()
        ]
        if [record.status for record in records] != [200] * TURNS:
            raise RuntimeError(f"a turn failed; read {folder}")
        reads = self._reads(records)
        for wait, record in zip(waits, records, strict=True):
            yield self._turn(pair, arm, wait, record, reads.get(record.turn))

    def _talk(self, router: Service, chance: random.Random, length: int) -> list[float]:
        agent = Agent(router.port, f"{chance.random()}", stream=True, parameters=dict(_PARAMETERS))
        return [agent.say(self._text(chance, length if turn == 0 else _NEW_TOKENS)).ttft_s for turn in range(TURNS)]

    def _text(self, chance: random.Random, tokens: int) -> str:
        text = say(chance, tokens)
        return text[: self._tokenizer.encode(text).offsets[tokens - 1][1]]

    def _reads(self, records: Sequence[TurnRecord]) -> dict[int | None, KvEvent]:
        """Return the conversation's reads by turn, once the connector has written all that the router knows of."""
        expected = sum(bool(record.remote_tokens) for record in records)
        log = self._running.folder / "prefill-events.jsonl"
        deadline = time.monotonic() + _SETTLE_S
        while True:
            events = (json.loads(line) for line in log.read_bytes().splitlines()) if log.exists() else ()
            found = [
                msgspec.convert(event, KvEvent)
                for event in events
                if event["kind"] == "transfer" and event.get("conversation") == records[0].conversation
            ]
            if len(found) >= expected:
                return {event.turn: event for event in found}
            if time.monotonic() > deadline:
                raise RuntimeError(f"{expected} reads were made, {len(found)} are in {log}")
            time.sleep(0.2)

    def _turn(self, pair: Pair, arm: Arm, ttft_s: float, record: TurnRecord, read: KvEvent | None) -> Turn:
        return Turn(
            arrangement=self._arrangement,
            length=pair.length,
            pair=pair.number,
            arm=arm,
            turn=record.turn,
            ttft_s=round(ttft_s, 4),
            prompt_tokens=record.prompt_tokens or 0,
            local_tokens=record.local_tokens or 0,
            remote_tokens=record.remote_tokens or 0,
            computed_tokens=record.computed_tokens or 0,
            prefill_s=record.prefill_s or 0.0,
            cause="/".join(filter(None, (record.cause, record.detail))),
            read_bytes=(read and read.bytes) or 0,
            read_s=(read and read.seconds) or 0.0,
        )
