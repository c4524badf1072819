"""Load and clients: queues, caches that are too small, long prompts, clients that are slow or gone."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from benchmarks.faults.clients import Stream
from benchmarks.faults.scenario import Evidence, Expected, scenario, turn_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.faults.rig import Rig


def at_once(rig: Rig, texts: Sequence[str], **parameters: object) -> None:
    """Let a new agent start with each of these texts, all at the same moment."""
    agents = [rig.agent(f"agent-{number}", stream=True, **parameters) for number in range(len(texts))]
    crowd = [threading.Thread(target=rig.say, args=turn) for turn in zip(agents, texts, strict=True)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join()


@scenario(
    Expected(
        "queueing/prefill",
        "The prompts are of the same length and were sent at the same moment; each waited for those before it.",
        evidence=(Evidence("prefill.log", r"Waiting: [1-9]", "requests wait for the only slot"),),
        also_wrong=("compute_bound", "slow_transfer"),
    ),
    engines=("prefill-narrow", "decode"),
)
def prompts_queue_on_prefill(rig: Rig) -> None:
    """Twenty long prompts arrive at once at a prefill engine that runs one at a time."""
    rig.talk(rig.agent("alone"), 2)
    at_once(rig, [rig.words(number, 250) for number in range(20)])


@scenario(
    Expected(
        "queueing/decode",
        "The answers are of the same length and were asked for at the same moment; each waited for those before it.",
        evidence=(Evidence("decode.log", r"Waiting: [1-9]", "requests wait for the only slot"),),
        also_wrong=("compute_bound", "slow_transfer", "kv_pressure"),
    ),
    engines=("prefill", "decode-narrow"),
)
def answers_queue_on_decode(rig: Rig) -> None:
    """Twelve long answers are asked for at once from a decode engine that writes one at a time."""
    rig.talk(rig.agent("alone"), 2)
    at_once(rig, [rig.words(number) for number in range(12)], max_tokens=800, ignore_eos=True)


@scenario(
    Expected(
        "kv_pressure/retained_blocks",
        "Each finished conversation keeps about a third of decode's blocks until its TTL is over, so new requests wait "
        "for blocks and not for a slot.",
        evidence=(Evidence("decode.log", r"Waiting: [1-9]|Deferred: [1-9]", "no blocks for the next request"),),
        also_wrong=("slow_transfer", "queueing/prefill"),
    ),
    engines=("prefill", "decode-small"),
)
def retained_blocks_fill_decode(rig: Rig) -> None:
    """Two agents leave their blocks in decode's small cache, and six more arrive."""
    for number in range(2):
        rig.say(rig.agent(f"earlier-{number}", stream=True), rig.words(100 + number, 110))
    at_once(rig, [rig.words(number, 110) for number in range(6)])


@scenario(
    Expected(
        "kv_pressure/capacity",
        "No conversation leaves blocks behind; what runs fills the cache, and what comes waits for blocks.",
        # No alert tells a cache that is full by what runs from any other queue; the page of queues asks.
        alerts=("KvdiagQueueing",),
        evidence=(Evidence("decode.log", r"Waiting: [1-9]", "no blocks for the next request"),),
        # It is off there, so that nothing is retained.
        beside=("feature_off",),
        also_wrong=("queueing/decode", "kv_pressure/retained_blocks"),
    ),
    engines=("prefill-narrow", "decode-small-off"),
)
def requests_fill_decode(rig: Rig) -> None:
    """Eighty agents send the same prompt at once; decode's cache holds four of them and shares no prefixes."""
    # Sixteen blocks with its answer, four times of which are 98 % of the cache.
    at_once(rig, [rig.words(0, 68)] * 80, max_tokens=140, ignore_eos=True)


@scenario(
    Expected(
        "kv_pressure/preempted",
        "The answers grow until the cache is full. No line of vLLM's tells of the requests that decode throws out to start "
        "anew (0.29 to 0.33 clear that count before they print it); its counter does.",
        # Over within seconds: no queue stands for as long as an alert waits.
        alerts=None,
        evidence=(
            Evidence("decode-metrics-after.txt", r"^vllm:num_preemptions_total\{", "running requests were thrown out"),
        ),
        # It is off there, so that nothing is retained.
        beside=("feature_off",),
        also_wrong=("queueing/decode", "kv_pressure/retained_blocks"),
    ),
    engines=("prefill-narrow", "decode-small-off"),
)
def answers_outgrow_decode(rig: Rig) -> None:
    """Six short requests ask for long answers at once, more than decode's small cache holds in the end."""
    rig.snapshot(rig.decode, "before")
    at_once(rig, [rig.words(number, 10) for number in range(6)], max_tokens=1800, ignore_eos=True)
    rig.snapshot(rig.decode, "after")


@scenario(
    Expected(
        "compute_bound",
        "The slow turn read the history back as the others did; what takes the time is what it adds to it.",
        turns=1,
        also_wrong=("slow_transfer", "missing_metadata"),
    ),
    engines=("prefill-tcp", "decode-tcp"),
    network=True,
)
def long_tool_results(rig: Rig) -> None:
    """One of an agent's many turns adds a tool's result of 6,000 tokens to its history of 9,000."""
    agent = rig.agent("reads-files", stream=True)
    rig.talk(agent, 1, size=300)
    rig.talk(agent, 7, size=2)
    rig.talk(agent, 1, size=200)


@scenario(
    Expected(
        "client/slow",
        "Only the client's reading makes the turn long: its first token came as fast as the others'.",
        turns=1,
        also_wrong=("queueing/decode", "healthy"),
    )
)
def client_drains_slowly(rig: Rig) -> None:
    """One client stops reading for 30 s in the middle of a long answer."""
    rig.talk(rig.agent("quick", stream=True, max_tokens=200, ignore_eos=True), 3)
    prompt = [{"role": "user", "content": rig.words(0)}]
    slow = Stream(rig.router.port, prompt, "slow", max_tokens=3000, ignore_eos=True)
    slow.read()
    time.sleep(30)
    slow.drain()
    slow.close()


@scenario(
    Expected(
        "client/aborted",
        "The router ended both calls when their clients went away; the engines were well.",
        turns=2,
        evidence=(turn_lines("client/aborted", "status 499"),),
        also_wrong=("upstream_error",),
    )
)
def clients_hang_up(rig: Rig) -> None:
    """Two clients close the connection after the first tokens."""
    rig.talk(rig.agent("stays", stream=True), 3)
    for number in range(2):
        prompt = [{"role": "user", "content": rig.words(number)}]
        gone = Stream(rig.router.port, prompt, f"gone-{number}", max_tokens=400, ignore_eos=True)
        gone.read()
        gone.close()
    time.sleep(2)
    rig.talk(rig.agent("stays too", stream=True), 2)


@scenario(
    Expected(
        "client/refused",
        "Prefill refused the prompt with a 400 that names its limit; the router handed that on. The turns before it and of "
        "the other agent were well.",
        turns=1,
        evidence=(turn_lines("client/refused", "status 400"),),
        also_wrong=("upstream_error", "feature_off"),
    ),
    errors=1,
)
def history_outgrows_the_model(rig: Rig) -> None:
    """An agent's third turn makes its history longer than --max-model-len."""
    agent = rig.agent("reads-too-much")
    rig.talk(agent, 2)
    rig.talk(agent, 1, size=300)
    rig.talk(rig.agent("modest"), 3)
