"""What a request may read, and what is told about it, from its arrival to the release of what it left."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.connector.digest import PrefixDigest, Salt

from .conftest import BLOCK, HELD, Bench, FakeRequest, bench, handle_params

if TYPE_CHECKING:
    from collections.abc import Sequence

GOES_ON = [*HELD, 1, 2, 3]
IN_RESPONSE = [*HELD[:950], 0, *HELD[951:], 1]
IN_HISTORY = [*HELD[:500], 0, *HELD[501:], 1]
UNRELATED = [0] * 1200
FIRST = {"do_remote_decode": True, "kvdiag": {"v": 1, "lookup": "first_turn"}}


@pytest.mark.parametrize(
    ("params", "prompt", "local", "external", "cause", "detail", "lost"),
    [
        pytest.param(FIRST, HELD, 0, 0, "first_turn", None, 0, id="first turn"),
        pytest.param(FIRST, HELD, 128, 0, "local_hit", None, 0, id="first turn, shared system prompt"),
        pytest.param({"do_remote_decode": True}, HELD, 0, 0, "missing_metadata", None, 0, id="router tells nothing"),
        pytest.param(
            {"do_remote_decode": True, "kvdiag": {"v": 1, "lookup": "router_lost_state"}},
            HELD, 0, 0, "missing_metadata", "router_lost_state", 0, id="router knows why",
        ),
        pytest.param(
            {"do_remote_decode": True, "kvdiag": {"v": 1, "lookup": "<b>"}},
            HELD, 0, 0, "missing_metadata", None, 0, id="a stranger's word is no label",
        ),
        pytest.param(handle_params(), GOES_ON, 0, 1000, "remote_hit", None, 0, id="goes on"),
        pytest.param(handle_params(), GOES_ON, 512, 488, "remote_hit", None, 0, id="goes on, half is here"),
        pytest.param(handle_params(), GOES_ON, 1000, 0, "local_hit", None, 0, id="goes on, all is here"),
        pytest.param(handle_params(), GOES_ON, 960, 0, "below_threshold", None, 40, id="too little to read"),
        pytest.param(handle_params(), IN_RESPONSE, 0, 944, "remote_hit", None, 56, id="response re-tokenised"),
        pytest.param(handle_params(), IN_HISTORY, 0, 496, "prefix_diverged", "in_history", 504, id="message edited"),
        pytest.param(handle_params(), UNRELATED, 0, 0, "prefix_diverged", "in_history", 1000, id="unrelated"),
        pytest.param(handle_params(), HELD[:500], 0, 496, "remote_hit", None, 0, id="history cut short"),
        pytest.param(handle_params(remote_port="x"), GOES_ON, 0, 0, "missing_metadata", "incomplete", 0, id="malformed"),
        pytest.param(handle_params(remote_num_tokens=None), GOES_ON, 0, 0, "missing_metadata", "incomplete", 0, id="no count"),
        pytest.param(handle_params(remote_block_ids=[[1]]), GOES_ON, 0, 0, "missing_metadata", "incomplete", 1000, id="no blocks"),
        pytest.param(
            handle_params(kvdiag={"age_s": 476.0}), GOES_ON, 0, 0, "expired_remote_read", "declined", 1000, id="expired by age",
        ),
        pytest.param(
            handle_params(kvdiag={"issued_at": 400.0}), GOES_ON, 0, 0, "expired_remote_read", "declined", 1000, id="expired by clock",
        ),
        pytest.param(
            handle_params(kvdiag={"age_s": 476.0}), GOES_ON, 1000, 0, "local_hit", None, 0, id="expired, all is here",
        ),
    ],
)  # fmt: skip
def test_decision(
    prefill: Bench,
    params: dict[str, Any],
    prompt: list[int],
    local: int,
    external: int,
    cause: str,
    detail: str | None,
    lost: int,
) -> None:
    request, claimed = prefill.admit(params, prompt, local=local)
    assert claimed == external
    (event,) = prefill.events("match")
    assert (event["cause"], event.get("detail")) == (cause, detail)
    outcome: dict[str, Any] = {}
    prefill.side.finished(request, [[1]], outcome, list, Salt)
    told = outcome["kvdiag"]
    assert (told["cause"], told["detail"], told["lost_tokens"]) == (cause, detail, lost)
    assert told["local_tokens"] == local
    assert told["remote_tokens"] == external


def test_a_loss_that_is_not_the_turns_cause_is_told_once_with_its_own(prefill: Bench) -> None:
    prefill.admit(handle_params(), IN_RESPONSE)
    items = prefill.items()
    match, decline = (item[1] for item in items if item[0] == "event")
    assert (match["cause"], match["lost_tokens"]) == ("remote_hit", 0)
    assert (decline["cause"], decline["detail"], decline["lost_tokens"], decline["position"]) == (
        "prefix_diverged", "in_response", 56, 948,
    )  # fmt: skip
    assert ["kept", 48, 52] in items


def test_too_little_to_read_is_that_wherever_it_parts(prefill: Bench) -> None:
    digest = PrefixDigest.of(HELD[:40], 30, BLOCK, Salt()).encode()
    params = handle_params(remote_num_tokens=40, remote_block_ids=[[1, 2, 3]], kvdiag={"prefix": digest})
    prefill.admit(params, [*HELD[:30], *[0] * 20])
    (event,) = prefill.events("match")
    assert event["cause"] == "below_threshold"


def test_a_whole_response_that_is_lost_is_the_turns_cause(prefill: Bench) -> None:
    """A reasoning model whose template strips what it thought: little prompt, much response."""
    digest = PrefixDigest.of(HELD, 100, BLOCK, Salt()).encode()
    prefill.admit(handle_params(kvdiag={"prefix": digest}), [*HELD[:100], *[0] * 200])
    (event,) = prefill.events("match")
    assert (event["cause"], event["detail"]) == ("prefix_diverged", "in_response")


def test_a_cut_read_shows_upstream_only_the_common_blocks(prefill: Bench) -> None:
    request, _ = prefill.admit(handle_params(), IN_HISTORY)
    assert request.kv_transfer_params["remote_num_tokens"] == 496
    assert request.kv_transfer_params["remote_block_ids"] == [list(range(31))]


def test_nothing_in_common_still_lets_decode_go(prefill: Bench) -> None:
    request, _ = prefill.admit(handle_params(), UNRELATED)
    assert request.kv_transfer_params["remote_block_ids"]
    assert request.kv_transfer_params["remote_num_tokens"] == 0
    assert prefill.side.take_notes() == {"turn": "notified"}


def test_a_stranger_is_not_notified_where_a_failed_handshake_would_stop_the_engine() -> None:
    old = bench(may_notify_strangers=False)
    request, _ = old.admit(handle_params(), UNRELATED)
    assert "remote_block_ids" not in request.kv_transfer_params
    old.side.absorb([["handshake", "engine-d", 0.1, None, None]])
    request, _ = old.admit(handle_params(remote_request_id="other"), UNRELATED, name="next")
    assert request.kv_transfer_params["remote_block_ids"]


@pytest.mark.parametrize("can_read_back", [True, False])
def test_a_prefill_without_the_feature_claims_nothing(can_read_back: bool) -> None:  # noqa: FBT001
    engine = bench(can_read_back=can_read_back)
    _, external = engine.admit(handle_params(), GOES_ON)
    assert bool(external) is can_read_back
    (event,) = engine.events("match")
    assert event["cause"] == ("remote_hit" if can_read_back else "feature_off")


def test_a_handle_is_good_once(prefill: Bench) -> None:
    prefill.admit(handle_params(), GOES_ON)
    prefill.items()
    request, external = prefill.admit(handle_params(), GOES_ON, name="retry")
    assert external == 0
    assert "remote_block_ids" not in request.kv_transfer_params
    (event,) = prefill.events("match")
    assert (event["cause"], event["detail"], event["lost_tokens"]) == ("missing_metadata", "consumed", 1000)


def test_a_handle_that_expires_in_the_queue_is_not_read(prefill: Bench) -> None:
    request = FakeRequest("turn", handle_params(kvdiag={"age_s": 470.0}), GOES_ON)
    prefill.side.admit(request)
    assert prefill.ask(request) == 1000
    prefill.clock[1] += 10
    assert prefill.ask(request) == 0


@pytest.mark.parametrize(
    ("detail", "after_s", "reads"),
    [
        ("restarted", 1e6, False),
        ("incompatible", 1e6, False),
        ("handshake_failed", 29, False),
        ("handshake_failed", 31, True),
    ],
)
def test_an_engine_out_of_reach_is_left_alone(prefill: Bench, detail: str, after_s: float, *, reads: bool) -> None:
    prefill.side.absorb([["handshake", "engine-d", 5.0, "peer_unreachable", detail]])
    prefill.clock[0] += after_s
    _, external = prefill.admit(handle_params(), GOES_ON)
    assert bool(external) is reads


@pytest.mark.parametrize(
    ("results", "reads"),
    [(["failed"], True), (["failed", "failed"], False), (["failed", "moved", "failed"], True)],
)
def test_two_failed_transfers_in_a_row_put_an_engine_out_of_reach(
    prefill: Bench, results: list[str], *, reads: bool
) -> None:
    for number, result in enumerate(results):
        name = f"turn-{number}"
        prefill.admit(handle_params(remote_request_id=name), GOES_ON, name=name)
        failed = [["failed", name, "transfer_failed", None, "engine-d"]]
        prefill.side.absorb(failed if result == "failed" else [["moved", name, 1, 0.1, 0.1, 1]])
        prefill.side.received([name])
    _, external = prefill.admit(handle_params(), GOES_ON)
    assert bool(external) is reads


def test_the_wait_for_the_scheduler_is_told_to_log_and_router(prefill: Bench) -> None:
    request = FakeRequest("turn", handle_params(), GOES_ON)
    prefill.side.admit(request)
    prefill.clock[0] += 3
    prefill.side.admitted(request, prefill.ask(request))
    (event,) = prefill.events("match")
    params: dict[str, Any] = {}
    prefill.side.finished(request, [[1]], params, list, Salt)
    assert (event["queue_s"], params["kvdiag"]["queue_s"]) == (3, 3)


def test_a_read_that_arrived_is_reported_over_all_ranks(prefill: Bench) -> None:
    prefill.admit(handle_params(), GOES_ON)
    prefill.items()
    prefill.clock[0] += 0.25
    prefill.side.absorb([["moved", "turn", 100, 0.1, 0.01, 4]])
    prefill.side.absorb([["handshake", "engine-d", 0.2, None, None], ["moved", "turn", 100, 0.2, 0.02, 4]])
    prefill.side.received(["turn", "unknown"])
    (event,) = prefill.events("transfer")
    assert (event["bytes"], event["seconds"], event["post_seconds"], event["descriptors"]) == (200, 0.2, 0.02, 8)
    assert (event["wait_s"], event["handshake_s"], event["direction"]) == (0.25, 0.2, "decode_to_prefill")
    assert (event["conversation"], event["turn"]) == ("c0ffee", 2)


@pytest.mark.parametrize(
    ("policy", "reported", "cause", "detail", "kind"),
    [
        ("fail", ("expired_remote_read", None), "expired_remote_read", "failed_request", "decline"),
        ("recompute", ("expired_remote_read", None), "expired_remote_read", "declined", "decline"),
        ("recompute", ("transfer_failed", None), "transfer_failed", None, "failure"),
        ("fail", ("peer_unreachable", "restarted"), "peer_unreachable", "restarted", "failure"),
    ],
)
def test_a_read_that_failed_is_lost_and_never_tried_again(
    policy: str, reported: tuple[str, str | None], cause: str, detail: str | None, kind: str
) -> None:
    engine = bench(failure_policy=policy)
    request, _ = engine.admit(handle_params(), GOES_ON)
    engine.items()
    engine.side.absorb([["failed", "turn", *reported, "engine-d"]])
    engine.side.received(["turn"])
    (event,) = engine.events(kind)
    assert (event["cause"], event.get("detail"), event["lost_tokens"]) == (cause, detail, 1000)
    assert engine.ask(request) == 0
    outcome: dict[str, Any] = {}
    engine.side.finished(request, [[1]], outcome, list, Salt)
    assert (outcome["kvdiag"]["cause"], outcome["kvdiag"]["remote_tokens"]) == (cause, 0)


BLOCKS = [[SimpleNamespace(block_hash=None, is_null=False)]]


@dataclass
class FakePool:
    """Counts the references that were taken, as vLLM's block pool does."""

    taken: int = 0

    def touch(self, blocks: Sequence[object]) -> None:
        self.taken += len(blocks)

    def free_blocks(self, ordered_blocks: Sequence[object]) -> None:
        self.taken -= len(ordered_blocks)


def stalled(engine: Bench, pool: FakePool) -> FakeRequest:
    """Return a request whose read a worker has given up."""
    engine.side.quarantine.bind(pool)
    request = FakeRequest("turn", handle_params(), GOES_ON, num_computed_tokens=1000)
    engine.side.admit(request)
    engine.side.admitted(request, engine.ask(request), BLOCKS)
    engine.items()
    engine.side.absorb([["stalled", "turn"], ["failed", "turn", "transfer_failed", "stalled", "engine-d"]])
    return request


def test_a_stalled_read_is_computed_in_other_blocks_and_its_own_wait_for_its_end(prefill: Bench) -> None:
    pool = FakePool()
    request = stalled(prefill, pool)
    prefill.side.received(["turn"])
    assert (request.num_computed_tokens, pool.taken) == (0, 1)
    (event,) = prefill.events("failure")
    assert (event["cause"], event["detail"], event["lost_tokens"]) == ("transfer_failed", "stalled", 1000)
    prefill.side.absorb([["settled", "turn"]])
    assert pool.taken == 0


def test_after_a_stalled_read_the_engine_is_left_alone_for_a_while(prefill: Bench) -> None:
    stalled(prefill, FakePool())
    prefill.side.received(["turn"])
    _, external = prefill.admit(handle_params(remote_request_id="next"), GOES_ON, name="next")
    assert external == 0


def test_a_stalled_read_of_a_request_that_has_ended_still_keeps_its_blocks(prefill: Bench) -> None:
    pool = FakePool()
    request = FakeRequest("turn", handle_params(), GOES_ON, num_computed_tokens=1000)
    prefill.side.quarantine.bind(pool)
    prefill.side.admit(request)
    prefill.side.admitted(request, prefill.ask(request), BLOCKS)
    prefill.side.finished(request, (), None, list, Salt)
    prefill.side.absorb([["stalled", "turn"], ["failed", "turn", "transfer_failed", "stalled", "engine-d"]])
    prefill.side.received(["turn"])
    assert (request.num_computed_tokens, pool.taken) == (1000, 1)


def test_a_failure_is_told_even_where_vllm_ends_the_request_first(prefill: Bench) -> None:
    """Under `fail` the scheduler finishes the request before it hands on what the workers reported."""
    request, _ = prefill.admit(handle_params(), GOES_ON)
    prefill.items()
    prefill.side.finished(request, (), None, list, Salt)
    prefill.side.absorb([["failed", "turn", "expired_remote_read", None, "engine-d"]])
    prefill.side.received(["turn"])
    (event,) = prefill.events("decline")
    assert (event["detail"], event["lost_tokens"]) == ("failed_request", 1000)
    assert prefill.side._turns == {}


def test_embedded_prompts_have_no_digest(decode: Bench) -> None:
    request, _ = decode.admit({"kvdiag": {"v": 1}}, HELD)
    request.prompt_embeds = object()
    params: dict[str, Any] = {"remote_num_tokens": 1000}
    decode.side.finished(request, [[1]], params, lambda: HELD, Salt)
    assert "prefix" not in params["kvdiag"]


def test_after_a_preemption_nothing_is_claimed_again(prefill: Bench) -> None:
    """Upstream would claim the tokens and queue no read: the request would wait for ever."""
    request, _ = prefill.admit(handle_params(), GOES_ON)
    assert prefill.ask(request) == 0


def test_decode_returns_what_the_next_prefill_needs(decode: Bench) -> None:
    request, _ = decode.admit({"do_remote_prefill": False, "kvdiag": {"v": 1, "turn": 1}}, HELD[:900])
    params: dict[str, Any] = {"remote_num_tokens": 1000}
    decode.side.finished(request, [list(range(63))], params, lambda: [*HELD, 7], Salt)
    told = params["kvdiag"]
    digest = PrefixDigest.decode(told["prefix"])
    assert digest is not None
    assert digest.agreement(GOES_ON, Salt()).tokens == 1000
    assert (told["v"], told["prompt_tokens"], told["ttl_s"], told["issued_at"], told["notes"]) == (
        1,
        900,
        480.0,
        1000.0,
        True,
    )


def test_with_verification_off_no_token_is_hashed() -> None:
    engine = bench(role="decode", verify=False)
    request, _ = engine.admit({"kvdiag": {"v": 1}}, HELD)
    params: dict[str, Any] = {"remote_num_tokens": 1000}
    engine.side.finished(request, [[1]], params, lambda: pytest.fail("tokens were asked for"), Salt)
    assert "prefix" not in params["kvdiag"]


@pytest.mark.parametrize("release", ["read", "notified", "expired"])
def test_retention_is_accounted_until_its_end(decode: Bench, release: str) -> None:
    request, _ = decode.admit({"kvdiag": {"v": 1}}, HELD)
    decode.side.finished(request, [[1, 2, 3]], {"remote_num_tokens": 40}, lambda: HELD, Salt)
    assert ["retained", 1, 3, 3 * 4096] in decode.items()
    decode.clock[0] += 12.5
    decode.side.absorb([["released", "turn", "read"], ["released", "turn", release]])
    decode.side.released(["turn", "unknown"])
    items = decode.items()
    (event,) = (item[1] for item in items if item[0] == "event")
    assert (event["release"], event["seconds"], event["bytes"], event.get("cause")) == (release, 12.5, 3 * 4096, None)
    assert items[-1] == ["retained", 0, 0, 0]


def test_a_lease_that_lapsed_on_prefill_is_an_incident_and_no_retention_for_later(prefill: Bench) -> None:
    request, _ = prefill.admit(dict(FIRST), HELD)
    prefill.side.finished(request, [[1, 2]], {}, list, Salt)
    assert ["retained", 0, 0, 0] in prefill.items()
    prefill.side.absorb([["released", "turn", "expired"]])
    prefill.side.released(["turn"])
    (event,) = prefill.events("release")
    assert (event["cause"], event["direction"]) == ("expired_handoff", "prefill_to_decode")


def test_a_late_read_names_both_requests(decode: Bench) -> None:
    decode.side.absorb([["suspect", "chatcmpl-old", "chatcmpl-reader"]])
    (event,) = decode.events("failure")
    assert (event["cause"], event["request_id"], event["remote_request_id"]) == (
        "suspect_kv",
        "chatcmpl-old",
        "chatcmpl-reader",
    )


@pytest.mark.parametrize("params", [None, [], "x", 7, {}, ["do_remote_decode"]])
def test_params_that_are_no_object_are_dropped(prefill: Bench, params: object) -> None:
    request, external = prefill.admit(params, HELD)
    assert (request.kv_transfer_params, external, prefill.items()) == (None, 0, [])


def test_decode_computes_for_itself_what_a_malformed_handoff_would_stop_it_for(decode: Bench) -> None:
    """Upstream claims the whole prompt for `do_remote_prefill` and then asserts that blocks came along."""
    request, _ = decode.admit({"do_remote_prefill": True}, HELD)
    assert request.kv_transfer_params["do_remote_prefill"] is False
    (event,) = decode.events("match")
    assert (event["cause"], event["detail"]) == ("missing_metadata", "incomplete")


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
keys = st.sampled_from(
    [
        *(key for key in handle_params() if key != "kvdiag"),
        "dcp_size",
        "tp_size",
        "_remote_blocks_processed",
        "_p_side_truncated",
    ]
)
contexts = st.dictionaries(st.sampled_from([*handle_params()["kvdiag"], "age_s", "traceparent"]), anything)


@given(st.dictionaries(keys, anything), contexts, st.sampled_from([GOES_ON, IN_RESPONSE, UNRELATED, []]), st.booleans())
def test_any_params_at_all_leave_upstream_something_it_can_work_with(
    changes: dict[str, Any],
    context: dict[str, Any],
    prompt: list[int],
    whole: bool,  # noqa: FBT001
) -> None:
    engine = bench(traces_endpoint="http://collector")
    params = handle_params(kvdiag=context, **changes) if whole else changes
    request, external = engine.admit(params, prompt)
    kept = request.kv_transfer_params or {}
    assert "_remote_blocks_processed" not in kept
    if kept.get("remote_block_ids") and kept.get("do_remote_decode"):
        assert all(type(block) is int for group in kept["remote_block_ids"] for block in group)
        assert external <= len(prompt)
    engine.side.received([request.request_id])
    engine.side.finished(request, [[1]], {"remote_num_tokens": 3}, lambda: HELD, Salt)
    assert not any(item[0] == "error" for item in engine.items())
