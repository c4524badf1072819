"""Handles: who keeps them, for how long, who uses them, and whether the prompt still fits."""

from __future__ import annotations

import copy
import threading
import time
from typing import TYPE_CHECKING

from benchmarks.faults.clients import Stream
from benchmarks.faults.engines import TTL_S
from benchmarks.faults.scenario import HEALTHY, Evidence, Expected, scenario, turn_lines

if TYPE_CHECKING:
    from benchmarks.faults.rig import Rig

    from kvdiag.localstack.agent import Agent


@scenario(stock=HEALTHY)
def three_agents_read_back(rig: Rig) -> None:
    """Three agents take five turns each, two of them streaming."""
    agents = [rig.agent(f"agent-{number}", stream=number != 2) for number in range(3)]
    for _ in range(5):
        for agent in agents:
            rig.talk(agent, 1, pause_s=1)


@scenario(stock=HEALTHY)
def conversations_end_and_their_blocks_expire(rig: Rig) -> None:
    """Two agents finish, decode lets their last blocks go by TTL, a third one works on."""
    for number in range(2):
        rig.talk(rig.agent(f"job-{number}", stream=True), 3)
    time.sleep(TTL_S + 4)
    rig.talk(rig.agent("job-2", stream=True), 5, pause_s=2)


@scenario()
def unnamed_conversations_recognised(rig: Rig) -> None:
    """Clients send no conversation id, the router knows them by their history."""
    for stream in (False, True):
        rig.talk(rig.agent(stream=stream), 5, pause_s=1)


@scenario(
    Expected(
        "missing_metadata/no_conversation_id",
        "Four turns of one agent came without an id; each later one was computed anew. Its first turn had nothing to "
        "reuse. The named agent's second turn was read back, so everything else works.",
        turns=3,
        also_wrong=("router_lost_state", "first_turn for all four"),
    ),
    router=("--no-derive",),
)
def no_conversation_id(rig: Rig) -> None:
    """An agent sends no conversation id to a router that goes by ids only."""
    rig.talk(rig.agent(), 4)
    rig.talk(rig.agent("named"), 2)


@scenario(
    Expected(
        "missing_metadata/router_lost_state",
        "After the restart the first turn of each agent brings a history that the router does not know; the turn after "
        "that is read back again.",
        turns=2,
        also_wrong=("first_turn", "no_conversation_id", "stale"),
    )
)
def router_restarted(rig: Rig) -> None:
    """The router is killed and started again between two agents' turns; handles were in its memory."""
    agents = [rig.agent(f"agent-{number}") for number in range(2)]
    for agent in agents:
        rig.talk(agent, 2)
    rig.restart(rig.router)
    for agent in agents:
        rig.talk(agent, 2)


@scenario(
    Expected(
        "expired_remote_read/declined",
        "The late agent's handle was still good for the router, its blocks were gone on decode. Prefill's connector saw "
        "it in time and computed the prompt; the client got a right answer, only later.",
        turns=1,
        also_wrong=("the benign TTL release on decode as an incident of its own", "stale"),
    ),
    router=("--handle-ttl", "120"),
)
def router_ttl_too_long(rig: Rig) -> None:
    """The router keeps handles for 120 s, decode its blocks for 20 s; an agent comes back after that."""
    steady, late = rig.agent("steady"), rig.agent("late")
    rig.talk(late, 1)
    began = time.monotonic()
    while time.monotonic() - began < TTL_S + 3:
        rig.talk(steady, 1, pause_s=3)
    rig.talk(late, 2)


@scenario(
    Expected(
        "missing_metadata/stale",
        "Decode still held the blocks when the router threw their handles away: both later turns of the slow thinker "
        "were computed, those of the quick agent were read back.",
        turns=2,
        also_wrong=("expired_remote_read", "router_lost_state"),
    ),
    router=("--handle-ttl", "3"),
)
def router_ttl_too_short(rig: Rig) -> None:
    """The router discards handles after 3 s, an agent thinks for 5 s between turns."""
    rig.talk(rig.agent("quick"), 3)
    rig.talk(rig.agent("thinks"), 3, pause_s=5)


@scenario(
    Expected(
        "missing_metadata/router_lost_state",
        "The second replica meets the conversation in its second turn and knows nothing of it. From then on each replica "
        "has a handle of its own, two turns old, so what is read back is the older prefix.",
        evidence=(
            turn_lines("missing_metadata/router_lost_state", "this replica never saw the turn before", "turns-2.jsonl"),
        ),
        also_wrong=("router restarted: both routers run throughout",),
    )
)
def two_routers_each_with_its_own_memory(rig: Rig) -> None:
    """A load balancer alternates between two router replicas that share nothing."""
    ports = rig.router.port, rig.add_router().port
    agent = rig.agent("pinned-to-nothing")
    for number in range(4):
        rig.say(agent, rig.words(number), ports[number % 2])
        time.sleep(0.5)


@scenario()
def two_routers_share_redis(rig: Rig) -> None:
    """A load balancer alternates between two router replicas with a shared store."""
    rig.add_store()
    two_routers_each_with_its_own_memory(rig)


@scenario(
    Expected(
        "missing_metadata/router_lost_state",
        "Two turns fell into the time without a store and the first one after it found the store empty; they were "
        "answered from a full prefill.",
        turns=3,
        evidence=(
            turn_lines("missing_metadata/router_lost_state", "no store, no handle"),
            Evidence("router.log", "handle store: connection lost", "the store went away"),
        ),
        also_wrong=("upstream_error", "first_turn"),
    )
)
def redis_down(rig: Rig) -> None:
    """The shared store is killed between turns and comes back empty."""
    store = rig.add_store()
    agent = rig.agent("before-and-after")
    rig.talk(agent, 3)
    store.kill()
    rig.talk(agent, 2)
    store.start()
    rig.wait_for("kvdiag_router_store_up 1.0")
    rig.talk(agent, 2)


@scenario(keep=False)
def answer_regenerated(rig: Rig) -> None:
    """A client asks for another answer to the same history."""
    agent = rig.agent("regenerates")
    rig.talk(agent, 2)
    rig.say(agent, rig.words(99))
    agent.messages.pop()
    rig.repeat(agent)


@scenario(
    Expected(
        "prefix_diverged/in_history",
        "Decode holds the branch that spoke last. The other one agrees with it as far as the trunk goes, which is read "
        "back, and parts there.",
        turns=1,
        also_wrong=("suspect_kv", "missing_metadata/consumed"),
    )
)
def history_forked(rig: Rig) -> None:
    """An agent splits into two branches after its second turn; both go on under the same conversation id."""
    fork(rig, rig.agent("forking"))


@scenario(
    Expected(
        "missing_metadata/consumed",
        "Told by their history alone, both branches start from the same turn, whose handle can be read once. The branch "
        "that came second was computed.",
        turns=1,
        also_wrong=("suspect_kv", "prefix_diverged"),
    )
)
def history_forked_without_an_id(rig: Rig) -> None:
    """An agent without a conversation id splits into two branches after its second turn."""
    fork(rig, rig.agent())


def fork(rig: Rig, trunk: Agent) -> None:
    """Let an agent take two turns, then two third ones."""
    rig.talk(trunk, 2)
    branch = copy.deepcopy(trunk)
    for agent, number in ((trunk, 10), (branch, 20)):
        rig.say(agent, rig.words(number))
        time.sleep(0.5)


@scenario(
    Expected(
        "missing_metadata/consumed",
        "Of the two copies one claimed the handle and read; the other one was computed. Without the router's claim both "
        "would have read, the second one from blocks that are free.",
        turns=1,
        also_wrong=("suspect_kv", "router_lost_state"),
    )
)
def request_hedged(rig: Rig) -> None:
    """A client sends the same turn twice at the same time."""
    agent = rig.agent("hedged")
    rig.talk(agent, 2)
    agent.messages.append({"role": "user", "content": rig.words(99)})
    copies = [threading.Thread(target=rig.repeat, args=(agent,)) for _ in range(2)]
    for one in copies:
        one.start()
        time.sleep(0.02)
    for one in copies:
        one.join()


@scenario(
    Expected(
        "missing_metadata/consumed",
        "The first try read the handle and was hung up; the second one had to be computed. Which of the two is the "
        "headline is open, both must be found.",
        turns=1,
        or_else=("client",),
        evidence=(
            turn_lines("missing_metadata/consumed", "the turn that was hung up had read the handle"),
            turn_lines("client/aborted", "the client went away"),
        ),
        also_wrong=("suspect_kv",),
    )
)
def client_hangs_up_and_tries_again(rig: Rig) -> None:
    """A client hangs up in the middle of a streamed answer and sends the turn again."""
    agent = rig.agent("impatient", stream=True)
    rig.talk(agent, 2)
    agent.messages.append({"role": "user", "content": rig.words(99)})
    first = Stream(rig.router.port, agent.messages, "impatient", max_tokens=400, ignore_eos=True)
    first.read()
    first.close()
    time.sleep(1)
    rig.repeat(agent)


@scenario(
    Expected(
        "missing_metadata/unsupported",
        "A request for two answers cannot read a handle, so its prompt was computed; the turns before and after it were "
        "read back.",
        turns=1,
        also_wrong=("consumed", "not_returned"),
    )
)
def two_answers_asked_for(rig: Rig) -> None:
    """One turn of an agent asks for two answers (n=2)."""
    agent = rig.agent("brainstorms")
    rig.talk(agent, 2)
    # Greedy sampling knows one answer only.
    agent.parameters = {"n": 2, "temperature": 1, "seed": 7}
    rig.talk(agent, 1)
    agent.parameters = {}
    rig.talk(agent, 2)


@scenario(
    Expected(
        "missing_metadata/holdout",
        "Every later turn was kept from reusing on purpose, to measure what reuse saves.",
        turns=4,
        or_else=("healthy",),
        also_wrong=("router_lost_state",),
    ),
)
def held_out(rig: Rig) -> None:
    """The router holds every conversation out, the arm of the experiment that measures turns without reuse."""
    rig.configure(holdout="1")
    for number in range(2):
        rig.talk(rig.agent(f"agent-{number}"), 3)


@scenario(
    Expected(
        "prefix_diverged/in_history",
        "The third turn's prompt parts from what decode holds in its first message. The connector read nothing; the "
        "answer equals an honest prefill's.",
        turns=1,
        also_wrong=("remote_hit",),
    )
)
def first_message_edited(rig: Rig) -> None:
    """A client edits its first message, the handle being alive."""
    agent = rig.agent("editor")
    rig.talk(agent, 2)
    agent.messages[0]["content"] = "Corrected. " + agent.messages[0]["content"][:-40]
    rig.talk(agent, 2)


@scenario(
    Expected(
        "prefix_diverged/in_history",
        "The fifth turn starts with a summary in place of four turns.",
        turns=1,
        also_wrong=("below_threshold", "router_lost_state"),
    )
)
def history_compacted(rig: Rig) -> None:
    """An agent replaces its history by a summary."""
    agent = rig.agent("compacting")
    rig.talk(agent, 4)
    agent.messages[:-2] = [{"role": "user", "content": "Summary of what was done so far: " + rig.words(7, 3)}]
    rig.talk(agent, 2)


@scenario(
    Expected(
        "prefix_diverged/in_response",
        "Each later prompt agrees with decode's tokens up to the last answer and parts there.",
        also_wrong=("in_history",),
    )
)
def reasoning_stripped(rig: Rig) -> None:
    """A client sends back only the end of each long answer, as templates do that strip reasoning."""
    agent = rig.agent("strips-reasoning", max_tokens=1200, ignore_eos=True)
    for number in range(3):
        rig.say(agent, rig.words(number))
        answer = agent.messages[-1]
        answer["content"] = answer["content"][len(answer["content"]) // 8 * 7 :]
        time.sleep(0.5)


@scenario(Expected("below_threshold", or_else=("healthy",)), keep=False)
def too_short_to_read(rig: Rig) -> None:
    """Turns are shorter than kv_recompute_threshold."""
    agent = rig.agent("short", max_tokens=4)
    for text in ("hello", "go on", "and then"):
        rig.say(agent, text)


@scenario(
    Expected(
        "missing_metadata/incomplete",
        "Prefill got params that name decode's blocks but not how many tokens they hold.",
        turns=2,
        evidence=(Evidence("prefill-events.jsonl", '"detail":"incomplete"', "the handle lacked remote_num_tokens"),),
        also_wrong=("not_returned", "feature_off"),
    )
)
def router_forwards_a_part_of_the_handle(rig: Rig) -> None:
    """A minimal router drops remote_num_tokens from decode's params."""
    talk = rig.by_hand()
    for _ in range(3):
        talk.turns()
        (talk.handle or {}).pop("remote_num_tokens", None)
