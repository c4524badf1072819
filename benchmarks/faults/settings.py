"""Scenarios about settings: what is switched off, missing, or too small."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from benchmarks.faults.clients import Stream
from benchmarks.faults.handles import turn_lines
from benchmarks.faults.scenario import EVERY_FAULT, HEALTHY, Evidence, Expected, Scenario

if TYPE_CHECKING:
    from benchmarks.faults.rig import Rig


def talks(rig: Rig) -> None:
    rig.talk(rig.agent("agent"), 4)


def streams(rig: Rig) -> None:
    rig.talk(rig.agent("streaming", stream=True), 4)


def works_longer(rig: Rig) -> None:
    for number in range(2):
        rig.talk(rig.agent(f"agent-{number}", stream=True), 5, pause_s=1)


def all_at_once(rig: Rig) -> None:
    rig.talk(rig.agent("alone"), 2)
    agents = [rig.agent(f"agent-{number}", stream=True) for number in range(6)]
    crowd = [
        threading.Thread(target=rig.say, args=(agent, rig.words(number, 200))) for number, agent in enumerate(agents)
    ]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join()


def fills_decode(rig: Rig) -> None:
    for number in range(6):
        rig.say(rig.agent(f"agent-{number}", stream=True), rig.words(number, 60))


def drains_slowly(rig: Rig) -> None:
    rig.talk(rig.agent("quick", stream=True, max_tokens=200, ignore_eos=True), 3)
    prompt = [{"role": "user", "content": rig.words(0)}]
    slow = Stream(rig.router.port, prompt, "slow", max_tokens=3000, ignore_eos=True)
    slow.read()
    time.sleep(30)
    slow.drain()
    slow.close()


def hangs_up(rig: Rig) -> None:
    rig.talk(rig.agent("stays", stream=True), 3)
    for number in range(2):
        prompt = [{"role": "user", "content": rig.words(number)}]
        gone = Stream(rig.router.port, prompt, f"gone-{number}", max_tokens=400, ignore_eos=True)
        gone.read()
        gone.close()
    time.sleep(2)
    rig.talk(rig.agent("stays too", stream=True), 2)


def config(file: str, pattern: str, role: str) -> Evidence:
    """Return a start-up line as evidence."""
    return Evidence(file, pattern, role)


SCENARIOS: Final = (
    Scenario(
        "feature-off-on-decode",
        "decode was started without bidirectional_kv_xfer",
        talks,
        Expected(
            "feature_off",
            "decode",
            must_not=("missing_metadata", "expired_remote_read"),
            evidence=(config("decode.log", "non-default args", "bidirectional_kv_xfer is False"),),
            why="Decode's start-up arguments switch the feature off, so its answers carry no handle; prefill has it on.",
            also_wrong=("not_returned as if streaming were to blame", "feature_off/prefill"),
        ),
        stock=Expected(
            "feature_off",
            "decode",
            must_not=("expired_remote_read",),
            evidence=(config("decode.log", "non-default args", "bidirectional_kv_xfer is False"),),
            why="Nothing but decode's start-up arguments shows it: no read-back and no failure anywhere.",
            also_wrong=("healthy",),
        ),
        engines=("prefill", "decode-off"),
        cases=("all", "stock"),
    ),
    Scenario(
        "feature-off-on-prefill",
        "prefill was started without bidirectional_kv_xfer; kvdiag's connector keeps turns from hanging",
        talks,
        Expected(
            "feature_off",
            "prefill",
            must_not=("missing_metadata", "expired_remote_read", "upstream_error"),
            evidence=(
                config("prefill.log", "non-default args", "bidirectional_kv_xfer is False"),
                turn_lines("feature_off", "prefill", "a handle came and was not used"),
            ),
            why="Decode returns handles, prefill's start-up arguments switch the feature off.",
            also_wrong=("feature_off/decode", "local_hit"),
        ),
        engines=("prefill-off", "decode"),
        cases=("all", "stock"),
        stock=Expected(
            "feature_off",
            "prefill",
            must_not=("expired_remote_read",),
            evidence=(config("prefill.log", "non-default args", "bidirectional_kv_xfer is False"),),
            why="Nothing but prefill's start-up arguments shows it.",
            also_wrong=("healthy",),
        ),
    ),
    Scenario(
        "no-connector-on-prefill",
        "prefill was started without --kv-transfer-config",
        talks,
        Expected(
            "feature_off",
            "no_connector",
            must_not=("expired_remote_read", "transfer_failed"),
            evidence=(
                Evidence("prefill.log", "no KVConnector found", "prefill ignores the params", every=True),
                turn_lines("feature_off", "no_connector", "prefill's answer carried no params"),
            ),
            why="Prefill says for every request that there is no connector; decode computes all prompts itself.",
            also_wrong=("missing_metadata",),
        ),
        engines=("prefill-bare", "decode"),
        cases=("all", "stock"),
        stock=Expected(
            "feature_off",
            "no_connector",
            must_not=("expired_remote_read", "transfer_failed"),
            evidence=(Evidence("prefill.log", "no KVConnector found", "prefill ignores the params", every=True),),
            why="Prefill says for every request that there is no connector.",
            also_wrong=("missing_metadata",),
        ),
    ),
    Scenario(
        "streams-return-no-handle",
        "vLLM 0.32 without the streaming plug-in: streamed answers carry no params",
        streams,
        Expected(
            "missing_metadata",
            "not_returned",
            turns=3,
            must_not=("feature_off", "expired_remote_read"),
            evidence=(turn_lines("missing_metadata", "not_returned", "the turn before left no handle"),),
            why="Both engines have the feature on and decode's streamed answers ended without params.",
            also_wrong=("feature_off", "router_lost_state"),
        ),
        engines=("prefill", "decode-mute"),
    ),
    Scenario(
        "whole-answers-without-the-plug-in",
        "the same engines, answers not streamed",
        talks,
        HEALTHY,
        engines=("prefill", "decode-mute"),
    ),
    Scenario(
        "prefills-own-cache-covers-it",
        "prefill keeps its prefix cache, nothing is left to read back",
        works_longer,
        Expected("local_hit", acceptable=("healthy",), must_not=EVERY_FAULT),
        stock=Expected("healthy", acceptable=("local_hit",), must_not=EVERY_FAULT),
        engines=("prefill-narrow", "decode"),
        cases=("all", "stock"),
    ),
    Scenario(
        "prompts-queue-on-prefill",
        "six long prompts arrive at once at a prefill engine that runs one at a time",
        all_at_once,
        Expected(
            "queueing",
            "prefill",
            must_not=("slow_transfer", "missing_metadata", "expired_remote_read"),
            evidence=(Evidence("prefill.log", r"Waiting: [1-9]", "requests wait for the only slot"),),
            why="The six prompts are of the same length and were sent at the same moment; each waited for those before it.",
            also_wrong=("compute_bound", "slow_transfer"),
        ),
        engines=("prefill-narrow", "decode"),
    ),
    Scenario(
        "retained-blocks-fill-decode",
        "decode's cache holds little more than one long request; six agents leave their blocks there one after another",
        fills_decode,
        Expected(
            "kv_pressure",
            acceptable=("queueing",),
            must_not=("slow_transfer", "missing_metadata", "expired_remote_read"),
            evidence=(Evidence("decode.log", r"Waiting: [1-9]|Deferred: [1-9]", "no blocks for the next request"),),
            why="Each finished conversation keeps about a third of decode's blocks until its TTL is over, so new requests "
            "wait for blocks and not for a slot.",
            also_wrong=("slow_transfer", "queueing/prefill"),
        ),
        engines=("prefill", "decode-small"),
    ),
    Scenario(
        "client-drains-slowly",
        "one client stops reading for 30 s in the middle of a long answer",
        drains_slowly,
        Expected(
            "client",
            "slow",
            turns=1,
            must_not=("slow_transfer", "queueing", "missing_metadata"),
            evidence=(Evidence("turns.jsonl", '"detail":"slow"', "the router saw its socket full"),),
            why="Only the client's reading makes the turn long: its first token came as fast as the others'.",
            also_wrong=("queueing/decode", "healthy"),
        ),
    ),
    Scenario(
        "clients-hang-up",
        "two clients close the connection after the first tokens",
        hangs_up,
        Expected(
            "client",
            "aborted",
            turns=2,
            must_not=("upstream_error", "transfer_failed", "expired_remote_read"),
            evidence=(turn_lines("client", "aborted", "status 499"),),
            why="The router ended both calls when their clients went away; the engines were well.",
            also_wrong=("upstream_error",),
        ),
    ),
    Scenario(
        "disk-full-for-the-turn-log",
        "the router's turn log is on a full disk",
        talks,
        HEALTHY,
        router=("--turn-log", "/dev/full"),
    ),
    Scenario(
        "disk-full-for-the-event-log",
        "prefill's event log is on a full disk",
        works_longer,
        HEALTHY,
        engines=("prefill-disk-full", "decode"),
    ),
)
