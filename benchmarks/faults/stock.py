"""Stock vLLM: what happens, and what can be seen, where nothing of kvdiag's runs on the engines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from benchmarks.faults import handles, settings
from benchmarks.faults.engines import TTL_S
from benchmarks.faults.scenario import Evidence, Expected, scenario, turn_lines

if TYPE_CHECKING:
    from benchmarks.faults.rig import Rig

_PAIR: Final = ("stock-prefill", "stock-decode")
_DECLINES: Final = Evidence("prefill.log", "Declining expired remote read", "root cause")


@scenario(engines=_PAIR, wrong_text=True)
def stock_pair_by_hand(rig: Rig) -> None:
    """Two conversations of six turns, no router at all."""
    talks = [rig.by_hand() for _ in range(2)]
    for _ in range(6):
        for talk in talks:
            talk.turns(pause_s=1)


@scenario(
    Expected(
        "expired_remote_read/failed_request",
        "Prefill declined to read blocks that decode was about to release, and kv_load_failure_policy=fail made the "
        "request an HTTP 500.",
        turns=1,
        beside=("upstream_error",),
        evidence=(
            _DECLINES,
            Evidence("prefill.log", "due to KV load failure", "policy fail turns the decline into an error"),
        ),
        also_wrong=("upstream_error as the root cause",),
    ),
    errors=1,
    engines=_PAIR,
    wrong_text=True,
)
def stock_read_back_expired(rig: Rig) -> None:
    """A turn comes when decode's TTL is nearly over; policy fail, no router to help."""
    steady, late = rig.by_hand(), rig.by_hand()
    late.turns()
    began = time.monotonic()
    while time.monotonic() - began < TTL_S - 3:
        steady.turns(pause_s=2)
    late.turns()
    late.handle = None
    late.turns()


@scenario(
    Expected(
        "expired_remote_read",
        "Prefill's decline failed its request; the router repeated the call without the handle and the client saw "
        "nothing of it.",
        beside=("upstream_error",),
        evidence=(_DECLINES,),
        also_wrong=("upstream_error as the root cause",),
    ),
    router=("--handle-ttl", "120"),
    engines=_PAIR,
    keep=False,
    wrong_text=True,
)
def stock_read_back_expired_behind_the_router(rig: Rig) -> None:
    """The same behind kvdiag's router with a TTL that is too long: it tries once more without the handle."""
    handles.router_ttl_too_long(rig)


@scenario(
    Expected(
        "suspect_kv/read_after_release",
        "The second read of one handle succeeded with HTTP 200; only decode knows that the blocks were not held for "
        "anybody then.",
        turns=1,
        evidence=(Evidence("decode.log", "Potentially invalid KV blocks", "decode did not hold them any more"),),
        also_wrong=("healthy", "expired_handoff"),
    ),
    engines=_PAIR,
    wrong_text=True,
)
def stock_handle_used_twice(rig: Rig) -> None:
    """A fork uses the same handle again; stock prefill reads blocks that are free."""
    talk = rig.by_hand()
    talk.turns(2)
    again = dict(talk.handle or {})
    talk.turns()
    talk.handle = again
    del talk.messages[-2:]
    talk.turns(2, pause_s=2)


@scenario(engines=_PAIR, wrong_text=True, keep=False)
def stock_first_message_edited(rig: Rig) -> None:
    """An edited history with a live handle: stock prefill compares counts only, and no log shows it."""
    talk = rig.by_hand()
    talk.turns(2)
    talk.messages[0]["content"] = "Corrected. " + talk.messages[0]["content"][:-40]
    talk.turns()


@scenario(
    Expected(
        "prefix_diverged/in_history",
        "The router saw that the history no longer starts as it did when decode answered.",
        turns=1,
        evidence=(turn_lines("prefix_diverged/in_history", "the router withheld the handle"),),
        also_wrong=("remote_hit",),
    ),
    engines=_PAIR,
    wrong_text=True,
)
def stock_edited_behind_the_router(rig: Rig) -> None:
    """The same behind kvdiag's router, which compares the history before it sends a stock engine's handle."""
    handles.first_message_edited(rig)


@scenario(
    Expected(
        "missing_metadata/not_returned",
        "Streamed answers of this vLLM carry no params.",
        turns=3,
        also_wrong=("feature_off",),
    ),
    engines=_PAIR,
)
def stock_streams_return_no_handle(rig: Rig) -> None:
    """Stock vLLM 0.32 behind kvdiag's router, streaming."""
    settings.streams(rig)


@scenario(
    Expected(
        "peer_unreachable/restarted",
        "The handles name an engine that was replaced. Policy fail makes both turns errors; the turns after them, without "
        "the old handles, are well.",
        turns=2,
        beside=("upstream_error",),
        evidence=(
            Evidence("prefill.log", "engine ID mismatch", "another engine answers at that address"),
            Evidence("prefill.log", "NIXL transfer failure", "the read of the dead engine's blocks"),
        ),
        also_wrong=("transfer_failed as the root cause", "expired_remote_read"),
    ),
    errors=2,
    engines=("stock-prefill", "stock-decode-patient"),
    wrong_text=True,
)
def stock_decode_restarted(rig: Rig) -> None:
    """Decode is restarted, a minimal router goes on sending the old handles of two conversations."""
    talks = [rig.by_hand() for _ in range(2)]
    for talk in talks:
        talk.turns(2)
    rig.restart(rig.decode)
    for talk in talks:
        talk.turns()
        talk.handle = None
        talk.turns(2)


@scenario(
    Expected(
        "expired_handoff",
        "Prefill let its blocks go before decode came. Decode read them all the same: the answer may be wrong, which "
        "makes suspect_kv as good a headline.",
        turns=1,
        or_else=("suspect_kv",),
        evidence=(
            Evidence("prefill.log", "Releasing expired KV blocks", "prefill's lease is over"),
            Evidence("prefill.log", "Potentially invalid KV blocks", "and decode read all the same"),
        ),
        also_wrong=("expired_remote_read", "a benign TTL release"),
    ),
    engines=("stock-prefill-short-lease", "stock-decode"),
    wrong_text=True,
)
def stock_hand_off_after_the_lease(rig: Rig) -> None:
    """Decode is called 12 s after prefill, whose lease is 5 s."""
    talk = rig.by_hand()
    talk.turns(2)
    talk.turns(between_s=12)
    talk.turns()


@scenario(
    Expected(
        "expired_remote_read",
        "vLLM claims the declined tokens again but never reads them; only the router's time limit for a reuse ended the "
        "wait. The second call, without the handle, was answered.",
        beside=("upstream_error",),
        evidence=(_DECLINES,),
        also_wrong=("queueing/prefill", "upstream_error as the root cause"),
    ),
    router=("--handle-ttl", "120"),
    engines=("stock-prefill-recompute", "stock-decode"),
    wrong_text=True,
)
def stock_decline_hangs_under_recompute(rig: Rig) -> None:
    """Policy recompute: the declined read hangs until the router's 6 s for a reuse are over."""
    rig.configure(deadlines__reuse_s="6")
    handles.router_ttl_too_long(rig)


@scenario(
    Expected(
        "feature_off/prefill",
        "Prefill's start-up arguments switch the feature off. It claims the tokens of a handle all the same and never "
        "reads them; only the router's time limit for a reuse ended each wait.",
        beside=("upstream_error",),
        evidence=(Evidence("prefill.log", "non-default args", "bidirectional_kv_xfer is False"),),
        also_wrong=("queueing/prefill", "expired_remote_read"),
    ),
    engines=("stock-prefill-off", "stock-decode"),
    wrong_text=True,
)
def stock_feature_off_on_prefill(rig: Rig) -> None:
    """A stock prefill was started without bidirectional_kv_xfer; decode returns handles and the router sends them."""
    rig.configure(deadlines__reuse_s="6")
    rig.talk(rig.agent("agent"), 3)
