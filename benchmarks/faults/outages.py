"""Outages: engines that die or freeze, a router that does."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from benchmarks.faults.scenario import Evidence, Expected, scenario, turn_lines

if TYPE_CHECKING:
    from benchmarks.faults.rig import Rig

    from kvdiag.localstack import Service

HEALTH_INTERVAL_S: Final = 5.0
"""How often the router looks at its engines."""
LEASE_S: Final = 30.0
"""For how long prefill keeps blocks for a decode engine that gives no sign of life."""

READ_TIMEOUT_S: Final = 20.0
"""After which prefill's connector gives a read up."""


def comes_back(rig: Rig, engine: Service) -> None:
    """Restart an engine and let the router find out."""
    rig.restart(engine)
    time.sleep(HEALTH_INTERVAL_S + 1)


def in_the_middle(rig: Rig, engine: Service, pause_s: float, size: int, **parameters: object) -> None:
    """Kill an engine some time after a turn has begun, then go on with another agent."""
    rig.talk(rig.agent("earlier", stream=True), 2)
    cut_off = rig.agent("cut-off", stream=True, **parameters)
    turn = threading.Thread(target=rig.say, args=(cut_off, rig.words(0, size)))
    turn.start()
    time.sleep(pause_s)
    comes_back(rig, engine)
    turn.join()
    rig.talk(rig.agent("after", stream=True), 2)


@scenario(
    Expected(
        "peer_unreachable/restarted",
        "Both agents' handles name an engine id that no longer exists. The router saw decode go away and sent them to "
        "prefill without; the turns after that are read back from the new decode.",
        turns=2,
        evidence=(
            turn_lines("peer_unreachable/restarted", "the handle's engine is gone"),
            Evidence("decode.log", "Creating v1 connector", "decode's engine ids"),
        ),
        also_wrong=("router_lost_state", "transfer_failed"),
    ),
    # A restart takes longer than decode's TTL: by age alone the handle would be stale.
    router=("--handle-ttl", "600"),
)
def decode_killed_and_restarted(rig: Rig) -> None:
    """Decode is killed between turns and comes back as another process."""
    agents = [rig.agent(f"agent-{number}") for number in range(2)]
    for agent in agents:
        rig.talk(agent, 2)
    comes_back(rig, rig.decode)
    for agent in agents:
        rig.talk(agent, 2)


@scenario(
    Expected(
        "upstream_error",
        "The answer had begun, so nobody could take over: the client was told inside the stream.",
        turns=1,
        or_else=("peer_unreachable",),
        evidence=(
            turn_lines("upstream_error", "the stream ended early"),
            Evidence("router.log", "does not answer", "the router's health check"),
        ),
        also_wrong=("client/aborted",),
    ),
    errors=1,
)
def decode_killed_in_a_stream(rig: Rig) -> None:
    """Decode is killed while it streams an answer."""
    in_the_middle(rig, rig.decode, 4, 20, max_tokens=4000, ignore_eos=True)


@scenario(
    Expected(
        "upstream_error",
        "There was one prefill engine and it died under the request; the client got an error at once.",
        turns=1,
        or_else=("peer_unreachable",),
        evidence=(
            turn_lines("upstream_error", "no prefill engine was left"),
            Evidence("router.log", "does not answer", "the router's health check"),
        ),
        also_wrong=("queueing/prefill",),
    ),
    errors=1,
)
def prefill_killed_in_a_prompt(rig: Rig) -> None:
    """Prefill is killed while it computes a long prompt."""
    in_the_middle(rig, rig.prefill, 0.4, 280)


@scenario(
    Expected(
        "expired_handoff",
        "Prefill heard nothing of decode for longer than its lease and let the blocks go. Decode read them after that: "
        "the answer may be wrong, which makes suspect_kv as good a headline.",
        turns=1,
        or_else=("suspect_kv",),
        evidence=(
            Evidence("prefill.log", "Releasing expired KV blocks", "prefill's lease is over"),
            Evidence("prefill.log", "Potentially invalid KV blocks", "decode woke up and read all the same"),
        ),
        also_wrong=("queueing/decode", "upstream_error", "a benign TTL release"),
    ),
    wrong_text=True,
)
def decode_freezes_before_it_reads(rig: Rig) -> None:
    """Decode is stopped for 35 s with a first turn on its way to it; prefill's lease is 30 s."""
    rig.talk(rig.agent("earlier"), 2)
    agent = rig.agent("agent")
    with rig.frozen(rig.decode):
        turn = threading.Thread(target=rig.talk, args=(agent, 1))
        turn.start()
        time.sleep(LEASE_S + 5)
    turn.join()
    rig.talk(agent, 2)


@scenario(
    Expected(
        "transfer_failed/stalled",
        "Prefill's read of what decode holds neither arrived nor failed. Its connector gave it up after its 20 s and "
        "computed the prompt; decode went on where it had stood.",
        turns=1,
        or_else=("peer_unreachable",),
        also_wrong=("expired_handoff", "queueing/prefill", "upstream_error"),
    )
)
def decode_freezes_under_a_read(rig: Rig) -> None:
    """Decode is stopped for 25 s right before prefill reads back from it."""
    agent = rig.agent("agent")
    rig.talk(agent, 2)
    with rig.frozen(rig.decode):
        turn = threading.Thread(target=rig.talk, args=(agent, 1))
        turn.start()
        time.sleep(READ_TIMEOUT_S + 5)
    turn.join()
    rig.talk(agent, 2)


@scenario(
    Expected(
        "unexplained",
        "Nothing in any log says that the machine stood still: the prompt was as short as the others, nothing queued "
        "and nothing was read slowly.",
        turns=1,
        also_wrong=("compute_bound", "queueing/prefill", "slow_transfer"),
    )
)
def prefill_stands_still(rig: Rig) -> None:
    """Prefill is stopped for 3 s in the middle of an agent's many like turns, as a hypervisor does that moves it."""
    agent = rig.agent("agent", stream=True)
    rig.talk(agent, 8, size=8)
    with rig.frozen(rig.prefill):
        turn = threading.Thread(target=rig.talk, args=(agent, 1), kwargs={"size": 8})
        turn.start()
        time.sleep(3)
    turn.join()
    rig.talk(agent, 2, size=8)


@scenario(
    Expected(
        "router_overhead",
        "Both engines did their part as fast as in the other turns; the router stood still between them.",
        turns=1,
        or_else=("unexplained",),
        also_wrong=("queueing/decode", "slow_transfer"),
    ),
    keep=False,
)
def router_stands_still(rig: Rig) -> None:
    """The router is stopped for 6 s while prefill computes for it."""
    agent = rig.agent("agent", stream=True)
    rig.talk(agent, 8, size=8)
    turn = threading.Thread(target=rig.talk, args=(agent, 1), kwargs={"size": 8})
    turn.start()
    time.sleep(0.05)
    with rig.frozen(rig.router):
        time.sleep(6)
    turn.join()
    rig.talk(agent, 2, size=8)
