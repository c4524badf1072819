"""Scenarios about handles: who keeps them, for how long, who uses them, and whether the prompt still fits."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from benchmarks.faults.clients import Stream
from benchmarks.faults.engines import TTL_S
from benchmarks.faults.scenario import EVERY_FAULT, HEALTHY, Evidence, Expected, Scenario

if TYPE_CHECKING:
    from benchmarks.faults.rig import Rig

NAMED_ONLY: Final = ("--no-derive",)


def three_agents(rig: Rig) -> None:
    agents = [rig.agent(f"agent-{number}", stream=number != 2) for number in range(3)]
    for _ in range(5):
        for agent in agents:
            rig.talk(agent, 1, pause_s=1)


def over_and_quiet(rig: Rig) -> None:
    for number in range(2):
        rig.talk(rig.agent(f"job-{number}", stream=True), 3)
    time.sleep(TTL_S + 4)
    rig.talk(rig.agent("job-2", stream=True), 5, pause_s=2)


def unnamed(rig: Rig) -> None:
    rig.talk(rig.agent(), 4)
    rig.talk(rig.agent("named"), 2)


def recognised(rig: Rig) -> None:
    for stream in (False, True):
        rig.talk(rig.agent(stream=stream), 5, pause_s=1)


def router_restarted(rig: Rig) -> None:
    agents = [rig.agent(f"agent-{number}") for number in range(2)]
    for agent in agents:
        rig.talk(agent, 2)
    rig.restart(rig.router)
    for agent in agents:
        rig.talk(agent, 2)


def comes_back_late(rig: Rig) -> None:
    steady, late = rig.agent("steady"), rig.agent("late")
    rig.talk(late, 1)
    began = time.monotonic()
    while time.monotonic() - began < TTL_S + 3:
        rig.talk(steady, 1, pause_s=3)
    rig.talk(late, 2)


def pauses(rig: Rig) -> None:
    rig.talk(rig.agent("quick"), 3)
    rig.talk(rig.agent("thinks"), 3, pause_s=5)


def alternates(rig: Rig) -> None:
    ports = rig.router.port, rig.add_router().port
    agent = rig.agent("pinned-to-nothing")
    for number in range(4):
        rig.say(agent, rig.words(number), ports[number % 2])
        time.sleep(0.5)


def shares(rig: Rig) -> None:
    rig.add_store()
    alternates(rig)


def loses_redis(rig: Rig) -> None:
    store = rig.add_store()
    agent = rig.agent("before-and-after")
    rig.talk(agent, 3)
    store.kill()
    rig.talk(agent, 2)
    store.start()
    time.sleep(6)
    rig.talk(agent, 2)


def regenerates(rig: Rig) -> None:
    agent = rig.agent("regenerates")
    rig.talk(agent, 2)
    rig.say(agent, rig.words(99))
    agent.messages.pop()
    rig.repeat(agent)


def hedges(rig: Rig) -> None:
    agent = rig.agent("hedged")
    rig.talk(agent, 2)
    agent.messages.append({"role": "user", "content": rig.words(99)})
    copies = [threading.Thread(target=rig.repeat, args=(agent,)) for _ in range(2)]
    for copy in copies:
        copy.start()
        time.sleep(0.02)
    for copy in copies:
        copy.join()


def retries_after_hanging_up(rig: Rig) -> None:
    agent = rig.agent("impatient", stream=True)
    rig.talk(agent, 2)
    agent.messages.append({"role": "user", "content": rig.words(99)})
    first = Stream(rig.router.port, agent.messages, "impatient", max_tokens=400, ignore_eos=True)
    first.read()
    first.close()
    time.sleep(1)
    rig.repeat(agent)


def edits(rig: Rig) -> None:
    agent = rig.agent("editor")
    rig.talk(agent, 2)
    agent.messages[0]["content"] = "Corrected. " + agent.messages[0]["content"][:-40]
    rig.talk(agent, 2)


def compacts(rig: Rig) -> None:
    agent = rig.agent("compacting")
    rig.talk(agent, 4)
    agent.messages[:-2] = [{"role": "user", "content": "Summary of what was done so far: " + rig.words(7, 3)}]
    rig.talk(agent, 2)


def strips(rig: Rig) -> None:
    agent = rig.agent("strips-reasoning", max_tokens=1200, ignore_eos=True)
    for number in range(3):
        rig.say(agent, rig.words(number))
        answer = agent.messages[-1]
        answer["content"] = answer["content"][len(answer["content"]) // 8 * 7 :]
        time.sleep(0.5)


def short(rig: Rig) -> None:
    agent = rig.agent("short", max_tokens=4)
    for text in ("hello", "go on", "and then"):
        rig.say(agent, text)


def forwards_a_part(rig: Rig) -> None:
    messages: list[dict[str, str]] = []
    handle: dict[str, object] = {}
    for number in range(3):
        messages.append({"role": "user", "content": rig.words(number)})
        handle = rig.by_hand(messages, handle) or {}
        handle.pop("remote_num_tokens", None)
        messages.append({"role": "assistant", "content": rig.exchanges[-1].answer.text})


def turn_lines(cause: str, detail: str | None, role: str, file: str = "turns.jsonl") -> Evidence:
    """Return every turn-log line of a cause and detail as evidence."""
    found = f'"detail":"{detail}"' if detail else '"detail":null'
    return Evidence(file, f'"cause":"{cause}",{found}', role, every=True)


SCENARIOS: Final = (
    Scenario(
        "three-agents-read-back",
        "three agents take five turns each, two of them streaming",
        three_agents,
        HEALTHY,
        stock=HEALTHY,
        cases=("all", "stock"),
    ),
    Scenario(
        "conversations-end-and-their-blocks-expire",
        "two agents finish, decode lets their last blocks go by TTL, a third works on",
        over_and_quiet,
        HEALTHY,
        stock=HEALTHY,
        cases=("all", "stock"),
    ),
    Scenario(
        "unnamed-conversations-recognised",
        "clients send no conversation id, the router knows them by their history",
        recognised,
        HEALTHY,
    ),
    Scenario(
        "no-conversation-id",
        "an agent sends no conversation id to a router that goes by ids only",
        unnamed,
        Expected(
            "missing_metadata",
            "no_conversation_id",
            turns=3,
            must_not=("expired_remote_read", "feature_off", "prefix_diverged"),
            evidence=(turn_lines("missing_metadata", "no_conversation_id", "the router could not link the turn"),),
            why="Four turns of one agent came without an id; each later one was computed anew. Its first turn had nothing "
            "to reuse. The named agent's second turn was read back, so everything else works.",
            also_wrong=("router_lost_state", "first_turn for all four"),
        ),
        router=NAMED_ONLY,
    ),
    Scenario(
        "router-restarted",
        "the router is killed and started again between two agents' turns; handles were in its memory",
        router_restarted,
        Expected(
            "missing_metadata",
            "router_lost_state",
            turns=2,
            must_not=("expired_remote_read", "peer_unreachable", "upstream_error"),
            evidence=(turn_lines("missing_metadata", "router_lost_state", "answers in the history, no handle"),),
            why="After the restart the first turn of each agent brings a history that the router does not know; the turn "
            "after that is read back again.",
            also_wrong=("first_turn", "no_conversation_id", "stale"),
        ),
    ),
    Scenario(
        "router-ttl-too-long",
        f"the router keeps handles for 120 s, decode its blocks for {TTL_S} s; an agent comes back after that",
        comes_back_late,
        Expected(
            "expired_remote_read",
            "declined",
            turns=1,
            must_not=("missing_metadata", "transfer_failed", "suspect_kv", "upstream_error"),
            evidence=(turn_lines("expired_remote_read", "declined", "the handle was past decode's TTL"),),
            why="The late agent's handle was still good for the router, its blocks were gone on decode. Prefill's connector "
            "saw it in time and computed the prompt; the client got a right answer, only later.",
            also_wrong=("the benign TTL release on decode as an incident of its own", "stale"),
        ),
        router=("--handle-ttl", "120"),
    ),
    Scenario(
        "router-ttl-too-short",
        "the router discards handles after 3 s, an agent thinks for 5 s between turns",
        pauses,
        Expected(
            "missing_metadata",
            "stale",
            turns=2,
            must_not=("expired_remote_read", "suspect_kv"),
            evidence=(turn_lines("missing_metadata", "stale", "discarded by the router's own TTL"),),
            why="Decode still held the blocks when the router threw their handles away: both later turns of the slow "
            "thinker were computed, those of the quick agent were read back.",
            also_wrong=("expired_remote_read", "router_lost_state"),
        ),
        router=("--handle-ttl", "3"),
    ),
    Scenario(
        "two-routers-each-with-its-own-memory",
        "a load balancer alternates between two router replicas that share nothing",
        alternates,
        Expected(
            "missing_metadata",
            "router_lost_state",
            must_not=("expired_remote_read", "peer_unreachable"),
            evidence=(
                turn_lines(
                    "missing_metadata", "router_lost_state", "this replica never saw the turn before", "turns-2.jsonl"
                ),
            ),
            why="The second replica meets the conversation in its second turn and knows nothing of it. From then on each "
            "replica has a handle of its own, two turns old, so what is read back is the older prefix.",
            also_wrong=("router restarted: both routers run throughout",),
        ),
    ),
    Scenario(
        "two-routers-share-redis",
        "the same two replicas with a shared store",
        shares,
        HEALTHY,
    ),
    Scenario(
        "redis-down",
        "the shared store is killed between turns and comes back empty",
        loses_redis,
        Expected(
            "missing_metadata",
            "router_lost_state",
            turns=3,
            must_not=("expired_remote_read", "peer_unreachable", "upstream_error"),
            evidence=(
                turn_lines("missing_metadata", "router_lost_state", "no store, no handle"),
                Evidence("router.log", "handle store: connection lost", "the store went away"),
            ),
            why="Two turns fell into the time without a store and the first one after it found the store empty; they were "
            "answered from a full prefill.",
            also_wrong=("upstream_error", "first_turn"),
        ),
    ),
    Scenario(
        "answer-regenerated",
        "a client asks for another answer to the same history",
        regenerates,
        HEALTHY,
        cases=(),
    ),
    Scenario(
        "request-hedged",
        "a client sends the same turn twice at the same time; the handle can be read once",
        hedges,
        Expected(
            "missing_metadata",
            "consumed",
            turns=1,
            must_not=("suspect_kv", "expired_remote_read", "peer_unreachable"),
            evidence=(turn_lines("missing_metadata", "consumed", "the other copy had the handle"),),
            why="Of the two copies one claimed the handle and read; the other one was computed. Without the router's claim "
            "both would have read, the second one from blocks that are free.",
            also_wrong=("suspect_kv", "router_lost_state"),
        ),
    ),
    Scenario(
        "client-hangs-up-and-tries-again",
        "a client hangs up in the middle of a streamed answer and sends the turn again",
        retries_after_hanging_up,
        Expected(
            "missing_metadata",
            "consumed",
            turns=1,
            acceptable=("client",),
            must_not=("suspect_kv", "expired_remote_read", "upstream_error"),
            evidence=(
                turn_lines("missing_metadata", "consumed", "the turn that was hung up had read the handle"),
                turn_lines("client", "aborted", "the client went away"),
            ),
            why="The first try read the handle and was hung up; the second one had to be computed. Which of the two is the "
            "headline is open, both must be found.",
            also_wrong=("suspect_kv",),
        ),
    ),
    Scenario(
        "first-message-edited",
        "a client edits its first message, the handle being alive",
        edits,
        Expected(
            "prefix_diverged",
            "in_history",
            turns=1,
            must_not=("missing_metadata", "suspect_kv", "expired_remote_read"),
            evidence=(turn_lines("prefix_diverged", "in_history", "parts within the first block"),),
            why="The third turn's prompt parts from what decode holds in its first message. The connector read nothing; "
            "the answer equals an honest prefill's.",
            also_wrong=("remote_hit",),
        ),
    ),
    Scenario(
        "history-compacted",
        "an agent replaces its history by a summary",
        compacts,
        Expected(
            "prefix_diverged",
            "in_history",
            turns=1,
            must_not=("missing_metadata", "suspect_kv", "expired_remote_read"),
            evidence=(turn_lines("prefix_diverged", "in_history", "the prompt is shorter, and another one"),),
            why="The fifth turn starts with a summary in place of four turns.",
            also_wrong=("below_threshold", "router_lost_state"),
        ),
    ),
    Scenario(
        "reasoning-stripped",
        "a client sends back only the end of each long answer, as templates do that strip reasoning",
        strips,
        Expected(
            "prefix_diverged",
            "in_response",
            must_not=("missing_metadata", "suspect_kv", "expired_remote_read"),
            evidence=(turn_lines("prefix_diverged", "in_response", "parts where the last answer begins"),),
            why="Each later prompt agrees with decode's tokens up to the last answer and parts there.",
            also_wrong=("in_history",),
        ),
    ),
    Scenario(
        "too-short-to-read",
        "turns shorter than kv_recompute_threshold",
        short,
        Expected("below_threshold", acceptable=("healthy",), must_not=EVERY_FAULT),
    ),
    Scenario(
        "router-forwards-a-part-of-the-handle",
        "a minimal router drops remote_num_tokens from decode's params",
        forwards_a_part,
        Expected(
            "missing_metadata",
            "incomplete",
            turns=2,
            must_not=("feature_off", "prefix_diverged"),
            evidence=(
                Evidence(
                    "prefill-events.jsonl", '"detail":"incomplete"', "the handle lacked remote_num_tokens", every=True
                ),
            ),
            why="Prefill got params that name decode's blocks but not how many tokens they hold.",
            also_wrong=("not_returned", "feature_off"),
        ),
    ),
)
