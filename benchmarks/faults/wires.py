"""The network between the engines: shut, cut or slow. Most of it runs in a network namespace of the run's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.faults import network
from benchmarks.faults.scenario import Evidence, Expected, scenario

if TYPE_CHECKING:
    from benchmarks.faults.rig import Rig

_WIRED: Final = ("prefill-tcp", "decode-tcp")
LONG: Final = 150
"""Size of a prompt of 4,200 tokens; two of them are 35 MB, enough to tell of the transport."""
STILL_S: Final = 4.5
"""Longer than a handshake takes on the slowest machine, shorter than vLLM waits for one (5 s)."""
_READ_BACKS: Final = Evidence("prefill-events.jsonl", '"kind":"transfer"', "read-backs")
_HAND_OFFS: Final = Evidence("decode-events.jsonl", '"kind":"transfer"', "hand-offs")


@scenario(
    Expected(
        "peer_unreachable/handshake_failed",
        "Prefill has never spoken with this decode; its first read-back needs a handshake and there is no way to decode's "
        "side channel. Data and HTTP connections work.",
        evidence=(
            Evidence("prefill.log", "handshake_setup_failed|handshake_failed|Handshake", "the handshake"),
            Evidence("prefill-events.jsonl", '"detail":"handshake_failed"', "the connector's event"),
        ),
        also_wrong=("transfer_failed", "upstream_error as the root cause"),
    ),
    engines=_WIRED,
    network=True,
)
def side_channel_blocked(rig: Rig) -> None:
    """The address of decode's side channel cannot be reached from prefill, which has not spoken with it yet."""
    agent = rig.agent("agent")
    rig.talk(agent, 1)
    with network.unplugged():
        rig.talk(agent, 2)


@scenario(
    Expected(
        "peer_unreachable/incompatible",
        "Decode computes in another data type than prefill: the handshake compares both engines and refuses. Everything "
        "else about them is alike.",
        beside=("upstream_error",),
        evidence=(
            Evidence("decode.log", "compatibility hash|incompatible", "the engines do not fit"),
            Evidence("decode.log", "NIXL transfer failure: handshake", "the record whose traceback says so"),
            Evidence("prefill.log", "compatibility hash|incompatible", "the engines do not fit"),
        ),
        also_wrong=("transfer_failed", "peer_unreachable/handshake_failed"),
    ),
    engines=("prefill", "decode-other"),
    errors=1,
)
def engines_do_not_fit(rig: Rig) -> None:
    """Decode runs with --dtype bfloat16, prefill with float32."""
    # One will do: engines write fifty thousand bytes of tracebacks about it.
    rig.talk(rig.agent("agent"), 1)


@scenario(
    Expected(
        "transfer_failed",
        "Both engines live and know each other; the connections that carry their KV were reset once. NIXL does not connect "
        "again: every transfer fails from then on, in both directions, and every turn with it.",
        or_else=("upstream_error",),
        beside=("missing_metadata",),
        evidence=(
            Evidence("prefill.log", "NIXL transfer failure", "NIXL's report"),
            Evidence("decode.log", "NIXL transfer failure", "NIXL's report"),
        ),
        also_wrong=("peer_unreachable/restarted", "expired_remote_read"),
    ),
    engines=_WIRED,
    errors=3,
    network=True,
    spoils=True,
)
def data_connections_reset(rig: Rig) -> None:
    """The connections that carry KV between the engines are reset between two turns."""
    agent = rig.agent("agent")
    rig.talk(agent, 3)
    network.reset(rig.prefill.port, rig.decode.port, rig.router.port)
    rig.talk(agent, 3)


@scenario(
    Expected(
        "slow_transfer",
        "Transfers of the same size take many times as long as before, in both directions.",
        evidence=(_READ_BACKS, _HAND_OFFS),
        also_wrong=("compute_bound", "queueing"),
    ),
    engines=_WIRED,
    network=True,
)
def slow_network(rig: Rig) -> None:
    """Both engines share 64 Mbit/s, after a conversation at full speed."""
    rig.talk(rig.agent("before", stream=True), 3, size=LONG)
    rig.take_for_usual()
    with network.slow("64mbit"):
        rig.talk(rig.agent("during", stream=True), 3, size=LONG)


@scenario(
    Expected(
        "slow_transfer/decode_to_prefill",
        "Prefill's reads of what decode holds take many times as long as before; the hand-offs of the same turns do not.",
        evidence=(_READ_BACKS,),
        also_wrong=("slow_transfer/prefill_to_decode", "compute_bound"),
    ),
    engines=_WIRED,
    network=True,
)
def slow_read_back(rig: Rig) -> None:
    """The network has 64 Mbit/s while prefill works on a turn, and full speed while decode does."""
    talk = rig.by_hand()
    talk.turns(1, size=2 * LONG)
    talk.turns(3, size=2)
    rig.take_for_usual()
    talk.turns(3, size=2, prefilling=lambda: network.slow("64mbit"))


@scenario(
    Expected(
        "slow_transfer/prefill_to_decode",
        "Decode's reads of what prefill computed take many times as long as before; the read-backs of the same turns do "
        "not.",
        evidence=(_HAND_OFFS,),
        also_wrong=("slow_transfer/decode_to_prefill", "queueing/decode"),
    ),
    engines=_WIRED,
    network=True,
)
def slow_hand_off(rig: Rig) -> None:
    """The network has 64 Mbit/s while decode works on a turn, and full speed while prefill does."""
    for _ in range(3):
        rig.by_hand().turns(1, size=2 * LONG)
    rig.take_for_usual()
    for _ in range(3):
        rig.by_hand().turns(1, size=2 * LONG, decoding=lambda: network.slow("64mbit"))


@scenario(
    Expected(
        "slow_transfer/handshake",
        "Prefill's first read from this decode waited for the handshake; the reads after it took no time.",
        # Engines set up once with each peer; the alert is about transfers that stay slow.
        alerts=None,
        evidence=(Evidence("prefill-events.jsonl", '"kind":"handshake"|"detail":"handshake"', "the handshake"),),
        also_wrong=("slow_transfer/decode_to_prefill", "compute_bound"),
    ),
    engines=("prefill", "decode"),
)
def first_contact_takes_long(rig: Rig) -> None:
    """A new decode stands still for 4.5 s when prefill reads from it for the first time; no router."""
    rig.restart(rig.decode)
    talk = rig.by_hand()
    talk.turns(1)
    talk.turns(1, prefilling=lambda: rig.standing_still(rig.decode, STILL_S))
    talk.turns(3)
