"""Scenarios about what breaks: engines that die, networks that are slow or shut."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from benchmarks.faults import network
from benchmarks.faults.handles import turn_lines
from benchmarks.faults.scenario import Evidence, Expected, Scenario

if TYPE_CHECKING:
    from benchmarks.faults.rig import Rig

    from kvdiag.localstack import Service

HEALTH_INTERVAL_S: Final = 5.0
"""How often the router looks at its engines."""
LEASE_S: Final = 30.0
"""For how long prefill keeps blocks for a decode engine that gives no sign of life."""


def comes_back(rig: Rig, engine: Service, *, pause_s: float = 0.0) -> None:
    """Restart an engine and let the router find out."""
    rig.restart(engine, pause_s=pause_s)
    time.sleep(HEALTH_INTERVAL_S + 1)


def decode_restarted(rig: Rig) -> None:
    agents = [rig.agent(f"agent-{number}") for number in range(2)]
    for agent in agents:
        rig.talk(agent, 2)
    comes_back(rig, rig.decode, pause_s=1)
    for agent in agents:
        rig.talk(agent, 2)


def decode_dies_in_a_stream(rig: Rig) -> None:
    rig.talk(rig.agent("earlier", stream=True), 2)
    long = threading.Thread(
        target=rig.say,
        args=(rig.agent("cut-off", stream=True, max_tokens=1500, ignore_eos=True), rig.words(0)),
    )
    long.start()
    time.sleep(4)
    comes_back(rig, rig.decode)
    long.join()
    rig.talk(rig.agent("after", stream=True), 2)


def prefill_dies_in_a_prompt(rig: Rig) -> None:
    rig.talk(rig.agent("earlier"), 2)
    long = threading.Thread(target=rig.say, args=(rig.agent("cut-off"), rig.words(0, 160)))
    long.start()
    time.sleep(0.4)
    comes_back(rig, rig.prefill)
    long.join()
    rig.talk(rig.agent("after"), 2)


def decode_freezes(rig: Rig) -> None:
    agent = rig.agent("agent")
    rig.talk(agent, 2)
    rig.decode.freeze()
    turn = threading.Thread(target=rig.talk, args=(agent, 1))
    turn.start()
    time.sleep(LEASE_S + 5)
    rig.decode.thaw()
    turn.join()
    rig.talk(agent, 2)


def side_channel_blocked(rig: Rig) -> None:
    agent = rig.agent("agent")
    rig.talk(agent, 1)
    with network.unplugged():
        rig.talk(agent, 2)


def slow_network(rig: Rig) -> None:
    first = rig.agent("before", stream=True)
    rig.talk(first, 3, size=40)
    with network.slow("8mbit"):
        rig.talk(rig.agent("during", stream=True), 4, size=40)


SCENARIOS: Final = (
    Scenario(
        "decode-killed-and-restarted",
        "decode is killed between turns and comes back as another process",
        decode_restarted,
        Expected(
            "peer_unreachable",
            "restarted",
            turns=2,
            must_not=("expired_remote_read", "suspect_kv", "missing_metadata"),
            evidence=(
                turn_lines("peer_unreachable", "restarted", "the handle's engine is gone"),
                Evidence("decode.log", "Creating v1 connector", "decode's engine ids", every=True),
            ),
            why="Both agents' handles name an engine id that no longer exists. The router saw decode go away and sent "
            "them to prefill without; the turns after that are read back from the new decode.",
            also_wrong=("router_lost_state", "transfer_failed"),
        ),
        # A restart takes longer than decode's TTL: by age alone the handle would be stale.
        router=("--handle-ttl", "600"),
    ),
    Scenario(
        "decode-killed-in-a-stream",
        "decode is killed while it streams an answer",
        decode_dies_in_a_stream,
        Expected(
            "upstream_error",
            turns=1,
            acceptable=("peer_unreachable",),
            must_not=("expired_remote_read", "suspect_kv", "client"),
            evidence=(
                turn_lines("upstream_error", None, "the stream ended early"),
                Evidence("router.log", "does not answer", "the router's health check"),
            ),
            why="The answer had begun, so nobody could take over: the client was told inside the stream.",
            also_wrong=("client/aborted",),
        ),
        errors=1,
    ),
    Scenario(
        "prefill-killed-in-a-prompt",
        "prefill is killed while it computes a long prompt",
        prefill_dies_in_a_prompt,
        Expected(
            "upstream_error",
            turns=1,
            acceptable=("peer_unreachable",),
            must_not=("expired_remote_read", "suspect_kv", "client"),
            evidence=(
                turn_lines("upstream_error", None, "no prefill engine was left"),
                Evidence("router.log", "does not answer", "the router's health check"),
            ),
            why="There was one prefill engine and it died under the request; the client got an error at once.",
            also_wrong=("queueing/prefill",),
        ),
        errors=1,
    ),
    Scenario(
        "decode-freezes-before-it-reads",
        "decode is stopped for 35 s with a turn on its way to it; prefill's lease is 30 s",
        decode_freezes,
        Expected(
            "expired_handoff",
            turns=1,
            acceptable=("suspect_kv",),
            must_not=("expired_remote_read", "transfer_failed", "feature_off"),
            evidence=(
                Evidence("prefill.log", "Releasing expired KV blocks", "prefill's lease is over"),
                Evidence("prefill.log", "Potentially invalid KV blocks", "decode woke up and read all the same"),
            ),
            why="Prefill heard nothing of decode for longer than its lease and let the blocks go. Decode read them after "
            "that: the answer may be wrong, which makes suspect_kv as good a headline.",
            also_wrong=("queueing/decode", "upstream_error", "a benign TTL release"),
        ),
    ),
    Scenario(
        "side-channel-blocked",
        "the address of decode's side channel cannot be reached from prefill",
        side_channel_blocked,
        Expected(
            "peer_unreachable",
            "handshake_failed",
            must_not=("expired_remote_read", "missing_metadata", "suspect_kv"),
            evidence=(
                Evidence(
                    "prefill.log", "handshake_setup_failed|handshake_failed|Handshake", "the handshake", every=True
                ),
                Evidence("prefill-events.jsonl", '"detail":"handshake_failed"', "the connector's event", every=True),
            ),
            why="Prefill has never spoken with this decode; its first read-back needs a handshake and there is no way to "
            "decode's side channel. Data and HTTP connections work.",
            also_wrong=("transfer_failed", "upstream_error as the root cause"),
        ),
        engines=("prefill-tcp", "decode-tcp"),
        network=True,
    ),
    Scenario(
        "slow-network",
        "both engines share 8 Mbit/s, after some turns at full speed",
        slow_network,
        Expected(
            "slow_transfer",
            must_not=("expired_remote_read", "missing_metadata", "transfer_failed", "queueing"),
            evidence=(
                Evidence("prefill-events.jsonl", '"kind":"transfer"', "read-backs", every=True),
                Evidence("decode-events.jsonl", '"kind":"transfer"', "hand-offs", every=True),
            ),
            why="Transfers of the same size take many times as long as before, in both directions.",
            also_wrong=("compute_bound", "queueing"),
        ),
        engines=("prefill-tcp", "decode-tcp"),
        network=True,
    ),
)
