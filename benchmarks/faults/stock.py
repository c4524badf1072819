"""Scenarios on stock vLLM: what happens, and what can be seen, where nothing of kvdiag's runs on the engines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from benchmarks.faults.engines import TTL_S
from benchmarks.faults.handles import comes_back_late, edits, turn_lines
from benchmarks.faults.scenario import HEALTHY, Evidence, Expected, Scenario
from benchmarks.faults.settings import streams

if TYPE_CHECKING:
    from benchmarks.faults.rig import Rig

Messages = list[dict[str, str]]
_PAIR: Final = ("stock-prefill", "stock-decode")


class _Talk:
    """A conversation driven by hand."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.messages: Messages = []
        self.handle: dict[str, object] | None = None

    def turns(self, count: int = 1, *, pause_s: float = 0.5, between_s: float = 0.0) -> None:
        """Take some turns; `between_s` passes between prefill and decode."""
        for _ in range(count):
            self.messages.append({"role": "user", "content": self._rig.words(len(self.messages))})
            self.handle = self._rig.by_hand(self.messages, self.handle, pause_s=between_s)
            self.messages.append({"role": "assistant", "content": self._rig.exchanges[-1].answer.text})
            time.sleep(pause_s)


def healthy_by_hand(rig: Rig) -> None:
    talks = [_Talk(rig) for _ in range(2)]
    for _ in range(6):
        for talk in talks:
            talk.turns(pause_s=1)


def expired_by_hand(rig: Rig) -> None:
    steady, late = _Talk(rig), _Talk(rig)
    late.turns()
    began = time.monotonic()
    while time.monotonic() - began < TTL_S - 3:
        steady.turns(pause_s=2)
    late.turns()
    late.handle = None
    late.turns()


def used_twice(rig: Rig) -> None:
    talk = _Talk(rig)
    talk.turns(2)
    again = dict(talk.handle or {})
    talk.turns()
    talk.handle = again
    del talk.messages[-2:]
    talk.turns(2, pause_s=2)


def edited_by_hand(rig: Rig) -> None:
    talk = _Talk(rig)
    talk.turns(2)
    talk.messages[0]["content"] = "Corrected. " + talk.messages[0]["content"][:-40]
    talk.turns()


def restarted_by_hand(rig: Rig) -> None:
    talk = _Talk(rig)
    talk.turns(3)
    rig.restart(rig.decode)
    talk.turns()
    talk.handle = None
    talk.turns(2)


def handed_off_late(rig: Rig) -> None:
    talk = _Talk(rig)
    talk.turns(2)
    talk.turns(between_s=12)
    talk.turns()


def hangs_under_recompute(rig: Rig) -> None:
    rig.configure(deadlines__reuse_s="6")
    comes_back_late(rig)


SCENARIOS: Final = (
    Scenario(
        "stock-pair-by-hand",
        "two conversations of six turns, no router at all",
        healthy_by_hand,
        HEALTHY,
        engines=_PAIR,
        wrong_text=True,
    ),
    Scenario(
        "stock-read-back-expired",
        "a turn comes when decode's TTL is nearly over; policy fail, no router to help",
        expired_by_hand,
        Expected(
            "expired_remote_read",
            "failed_request",
            turns=1,
            must_not=("transfer_failed", "expired_handoff", "suspect_kv", "missing_metadata"),
            evidence=(
                Evidence("prefill.log", "Declining expired remote read", "root cause"),
                Evidence("prefill.log", "due to KV load failure", "policy fail turns the decline into an error"),
            ),
            why="Prefill declined to read blocks that decode was about to release, and kv_load_failure_policy=fail made the "
            "request an HTTP 500.",
            also_wrong=("upstream_error as the root cause",),
        ),
        errors=1,
        engines=_PAIR,
        wrong_text=True,
    ),
    Scenario(
        "stock-read-back-expired-behind-the-router",
        "the same behind kvdiag's router with a TTL that is too long: it tries once more without the handle",
        comes_back_late,
        Expected(
            "expired_remote_read",
            must_not=("transfer_failed", "expired_handoff", "suspect_kv"),
            evidence=(Evidence("prefill.log", "Declining expired remote read", "root cause"),),
            why="Prefill's decline failed its request; the router repeated the call without the handle and the client saw "
            "nothing of it.",
            also_wrong=("upstream_error as the root cause",),
        ),
        router=("--handle-ttl", "120"),
        engines=_PAIR,
        cases=(),
        wrong_text=True,
    ),
    Scenario(
        "stock-handle-used-twice",
        "a fork uses the same handle again; stock prefill reads blocks that are free",
        used_twice,
        Expected(
            "suspect_kv",
            "read_after_release",
            turns=1,
            must_not=("expired_handoff", "transfer_failed", "missing_metadata"),
            evidence=(Evidence("decode.log", "Potentially invalid KV blocks", "decode did not hold them any more"),),
            why="The second read of one handle succeeded with HTTP 200; only decode knows that the blocks were not held "
            "for anybody then.",
            also_wrong=("healthy", "expired_handoff"),
        ),
        engines=_PAIR,
        wrong_text=True,
    ),
    Scenario(
        "stock-first-message-edited",
        "an edited history with a live handle: stock prefill compares counts only",
        edited_by_hand,
        HEALTHY,
        wrong_text=True,
        cases=(),
        engines=_PAIR,
    ),
    Scenario(
        "stock-edited-behind-the-router",
        "the same behind kvdiag's router, which compares the history before it sends a stock engine's handle",
        edits,
        Expected(
            "prefix_diverged",
            "in_history",
            turns=1,
            must_not=("missing_metadata", "suspect_kv", "expired_remote_read"),
            evidence=(turn_lines("prefix_diverged", "in_history", "the router withheld the handle"),),
            why="The router saw that the history no longer starts as it did when decode answered.",
            also_wrong=("remote_hit",),
        ),
        engines=_PAIR,
        wrong_text=True,
    ),
    Scenario(
        "stock-streams-return-no-handle",
        "stock vLLM 0.32 behind kvdiag's router, streaming",
        streams,
        Expected(
            "missing_metadata",
            "not_returned",
            turns=3,
            must_not=("feature_off", "expired_remote_read"),
            evidence=(turn_lines("missing_metadata", "not_returned", "the turn before left no handle"),),
            why="Streamed answers of this vLLM carry no params.",
            also_wrong=("feature_off",),
        ),
        engines=_PAIR,
    ),
    Scenario(
        "stock-decode-restarted",
        "decode is restarted, a minimal router goes on sending the old handle",
        restarted_by_hand,
        Expected(
            "peer_unreachable",
            "restarted",
            turns=1,
            must_not=("expired_remote_read", "suspect_kv", "missing_metadata"),
            evidence=(
                Evidence("prefill.log", "engine ID mismatch", "another engine answers at that address", every=True),
                Evidence("prefill.log", "NIXL transfer failure", "the read of the dead engine's blocks", every=True),
            ),
            why="The handle names an engine that was replaced. Policy fail makes the turn an error; the turns after it, "
            "without the old handle, are well.",
            also_wrong=("transfer_failed as the root cause", "expired_remote_read"),
        ),
        errors=1,
        engines=("stock-prefill", "stock-decode-patient"),
        wrong_text=True,
    ),
    Scenario(
        "stock-hand-off-after-the-lease",
        "decode is called 12 s after prefill, whose lease is 5 s",
        handed_off_late,
        Expected(
            "expired_handoff",
            turns=1,
            acceptable=("suspect_kv",),
            must_not=("expired_remote_read", "missing_metadata"),
            evidence=(
                Evidence("prefill.log", "Releasing expired KV blocks", "prefill's lease is over"),
                Evidence("prefill.log", "Potentially invalid KV blocks", "and decode read all the same"),
            ),
            why="Prefill let its blocks go before decode came. Decode read them all the same: the answer may be wrong, "
            "which makes suspect_kv as good a headline.",
            also_wrong=("expired_remote_read", "a benign TTL release"),
        ),
        engines=("stock-prefill-short-lease", "stock-decode"),
        wrong_text=True,
    ),
    Scenario(
        "stock-decline-hangs-under-recompute",
        "policy recompute: the declined read hangs until the router's 6 s for a reuse are over",
        hangs_under_recompute,
        Expected(
            "expired_remote_read",
            must_not=("transfer_failed", "expired_handoff", "suspect_kv", "queueing"),
            evidence=(Evidence("prefill.log", "Declining expired remote read", "root cause"),),
            why="vLLM claims the declined tokens again but never reads them; only the router's time limit for a reuse "
            "ended the wait. The second call, without the handle, was answered.",
            also_wrong=("queueing/prefill", "upstream_error as the root cause"),
        ),
        router=("--handle-ttl", "120"),
        engines=("stock-prefill-recompute", "stock-decode"),
        wrong_text=True,
    ),
)
