"""The probe proves reuse or names the broken link."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvdiag.doctor import PROBED, Result, observe, probe

from .conftest import Engine, Fake, Router

if TYPE_CHECKING:
    from collections.abc import Callable


def outcomes(
    router: Fake | None = None, prefill: Fake | None = None, decode: Fake | None = None, model: str | None = "tiny"
) -> dict[str, Result]:
    site = observe(
        router.url if router else None,
        [prefill.url] if prefill else [],
        [decode.url] if decode else [],
        api_key=None,
        timeout_s=5,
    )
    return {result.check: result for result in probe(site, model=model, timeout_s=5)}


def all_of(prefills: list[Fake], decodes: list[Fake]) -> list[Result]:
    site = observe(None, [fake.url for fake in prefills], [fake.url for fake in decodes], api_key=None, timeout_s=5)
    return probe(site, model="tiny", timeout_s=5)


def netloc(fake: Fake) -> str:
    return fake.url.partition("://")[2]


def test_every_pair_is_tried_and_the_broken_ones_are_named(serve: Callable[[Fake], Fake]) -> None:
    prefills = [serve(Engine()), serve(Engine())]
    decodes = [serve(Engine(role="decode")), serve(Engine(role="decode", bidirectional=False))]
    good, bad = [result for result in all_of(prefills, decodes) if result.check == "reuse"]
    assert (good.state, bad.state) == ("ok", "problem")
    assert all(f"{netloc(prefill)}+{netloc(decodes[0])}" in good.seen for prefill in prefills)
    assert all(f"{netloc(prefill)}+{netloc(decodes[1])}" in bad.seen for prefill in prefills)


def test_a_router_that_works_does_not_hide_a_broken_pair(serve: Callable[[Fake], Fake]) -> None:
    router = serve(Router())
    engines = [serve(Engine()), serve(Engine(role="decode", bidirectional=False))]
    site = observe(router.url, [engines[0].url], [engines[1].url], api_key=None, timeout_s=5)
    states = [result.state for result in probe(site, model="tiny", timeout_s=5) if result.check == "reuse"]
    assert states == ["ok", "problem"]


def test_many_pairs_are_bounded_and_the_rest_is_said(
    serve: Callable[[Fake], Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvdiag.doctor.proof.MOST_PAIRS", 3)
    prefills, decodes = [serve(Engine()) for _ in range(2)], [serve(Engine(role="decode")) for _ in range(3)]
    *_, last = all_of(prefills, decodes)
    assert (last.state, "3 of 6 pairs" in last.seen) == ("not evaluated", True)
    assert all(fake.asked for fake in prefills + decodes)


@pytest.mark.parametrize("connector", ["kvdiag", "stock"])
def test_driven_by_hand_a_read_back_is_proven(serve: Callable[[Fake], Fake], connector: str) -> None:
    cause = "remote_hit" if connector == "kvdiag" else None
    prefill, decode = serve(Engine(connector=connector, cause=cause)), serve(Engine(role="decode", connector=connector))
    results = outcomes(prefill=prefill, decode=decode)
    assert {check: result.state for check, result in results.items()} == {
        "reuse": "ok",
        "streaming_handles": "ok",
        "side_channel": "ok",
    }


def test_the_second_prompt_starts_with_all_that_decode_holds(serve: Callable[[Fake], Fake]) -> None:
    prefill, decode = serve(Engine()), serve(Engine(role="decode"))
    outcomes(prefill=prefill, decode=decode)
    first, second = [body for path, body, _ in prefill.asked if path == "/v1/completions"]
    held = list(first["prompt"].encode()) + [7] * 96
    assert second["prompt"][: len(held)] == held
    assert len(second["prompt"]) > len(held)
    assert second["kv_transfer_params"]["do_remote_decode"] is True
    assert len(held) - len(first["prompt"]) >= 64 + 2 * 16


@pytest.mark.parametrize(
    ("prefill", "decode", "check", "seen", "remedy"),
    [
        (
            Engine(connector=None),
            Engine(role="decode"),
            "reuse",
            "prefill returned no kv_transfer_params",
            "--kv-transfer-config",
        ),
        (
            Engine(),
            Engine(role="decode", bidirectional=False),
            "reuse",
            "decode's answer carried no handle",
            "decode's kv_connector_extra_config",
        ),
        (
            Engine(),
            Engine(role="decode", hand_off_status=500),
            "reuse",
            "the hand-off from prefill to decode failed: decode http://",
            "read the engine's own log",
        ),
        (
            Engine(status=500),
            Engine(role="decode"),
            "reuse",
            "answered 500: KV load failure",
            "prefill's kv_connector_extra_config",
        ),
        (
            Engine(cause="expired_remote_read"),
            Engine(role="decode"),
            "reuse",
            "expired_remote_read",
            "decoder_kv_blocks_ttl",
        ),
        (
            Engine(),
            Engine(role="decode", streams_handles=False),
            "streaming_handles",
            "streamed answer carries no handle",
            "VLLM_PLUGINS",
        ),
    ],
    ids=["no connector", "off on decode", "failed hand-off", "failed read", "expired", "no streamed handle"],
)
def test_a_broken_link_is_named(
    serve: Callable[[Fake], Fake], prefill: Engine, decode: Engine, check: str, seen: str, remedy: str
) -> None:
    result = outcomes(prefill=serve(prefill), decode=serve(decode))[check]
    assert result.state == "problem"
    assert seen in result.seen
    assert remedy in result.remedy


def test_a_handle_that_moves_nothing_is_no_reuse(
    serve: Callable[[Fake], Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvdiag.doctor.readback.SETTLE_S", 0.0)
    prefill = Engine(connector="stock", silent=True)
    result = outcomes(prefill=serve(prefill), decode=serve(Engine(role="decode")))["reuse"]
    assert (result.state, result.seen) == ("problem", "prefill had a handle and read nothing")


def test_through_the_router_its_own_count_is_the_proof(serve: Callable[[Fake], Fake]) -> None:
    router = serve(Router())
    result = outcomes(router=router)["reuse"]
    assert (result.state, result.seen) == ("ok", "through the router, the second turn was read back from decode")
    _, first, second = [(body["conversation_id"], headers["x-conversation-id"]) for _, body, headers in router.asked]
    assert first == second
    assert len(set(first)) == 1


def test_through_the_router_the_second_turn_begins_with_what_the_first_one_sent(serve: Callable[[Fake], Fake]) -> None:
    router = serve(Router())
    outcomes(router=router)
    text, first, second = [body["prompt"] for _, body, _ in router.asked]
    assert isinstance(text, str)
    assert sorted(first) == sorted(text.encode())
    assert second[: len(first)] == first


def test_the_routers_cause_names_the_link(serve: Callable[[Fake], Fake]) -> None:
    result = outcomes(router=serve(Router(cause="missing_metadata", detail="not_returned")))["reuse"]
    assert result.state == "problem"
    assert "missing_metadata/not_returned" in result.seen
    assert "VLLM_PLUGINS" in result.remedy


def test_engines_that_work_by_hand_leave_the_router(serve: Callable[[Fake], Fake]) -> None:
    router = serve(Router(cause="missing_metadata", detail="router_lost_state"))
    result = outcomes(router=router, prefill=serve(Engine()), decode=serve(Engine(role="decode")))["reuse"]
    assert result.state == "problem"
    assert result.seen.endswith("the router is the broken link")


def test_engines_that_fail_by_hand_are_named_first(serve: Callable[[Fake], Fake]) -> None:
    router = serve(Router(cause="missing_metadata", detail="not_returned"))
    decode = serve(Engine(role="decode", bidirectional=False))
    result = outcomes(router=router, prefill=serve(Engine()), decode=decode)["reuse"]
    assert result.seen == "decode's answer carried no handle"


def test_a_router_under_load_is_not_judged(serve: Callable[[Fake], Fake]) -> None:
    result = outcomes(router=serve(Router(more_traffic=True)))["reuse"]
    assert result.state == "not evaluated"
    assert "2 causes" in result.seen


def test_a_foreign_router_is_judged_by_prefills_counters(
    serve: Callable[[Fake], Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvdiag.doctor.readback.SETTLE_S", 0.0)
    router, prefill = serve(Router()), serve(Engine(connector="stock"))
    router.answer = lambda _path, _body, _headers: (200, '{"choices":[{"text":"a"}]}')
    router.pages["/metrics"] = "python_info 1\n"
    result = outcomes(router=router, prefill=prefill)["reuse"]
    assert (result.state, "read nothing back" in result.seen) == ("problem", True)


@pytest.mark.parametrize("status", [401, 404, 500])
def test_a_router_that_refuses_is_a_problem(serve: Callable[[Fake], Fake], status: int) -> None:
    router = serve(Router())
    router.answer = lambda _path, _body, _headers: (status, '{"error":{"message":"no \\u001b[2J"}}')
    result = outcomes(router=router)["reuse"]
    assert result.state == "problem"
    assert f"answered {status}" in result.seen


def test_without_a_model_nothing_is_sent(serve: Callable[[Fake], Fake]) -> None:
    router = serve(Router())
    assert outcomes(router=router, model=None)["reuse"].state == "not evaluated"
    assert router.asked == []


def test_nothing_is_sent_to_engines_that_are_called_by_each_others_role(serve: Callable[[Fake], Fake]) -> None:
    prefill, decode = serve(Engine()), serve(Engine(role="decode"))
    results = outcomes(prefill=decode, decode=prefill)
    assert {check: result.state for check, result in results.items()} == dict.fromkeys(PROBED, "not evaluated")
    assert prefill.asked == decode.asked == []


def test_a_model_that_nobody_serves_is_answered_with_those_that_are_served(serve: Callable[[Fake], Fake]) -> None:
    prefill, decode = serve(Engine()), serve(Engine(role="decode"))
    decode.pages["/v1/models"] = '{"data":[{"id":"tiny"},{"id":"adapter"}]}'
    result = outcomes(prefill=prefill, decode=decode, model="tyni")["reuse"]
    assert (result.state, "tyni" in result.seen) == ("problem", True)
    assert result.remedy.endswith("adapter, tiny")
    assert prefill.asked == decode.asked == []


def test_a_side_channel_that_refuses_is_named(serve: Callable[[Fake], Fake]) -> None:
    prefill, decode = serve(Engine(status=500)), serve(Engine(role="decode"))
    result = outcomes(prefill=prefill, decode=decode)["side_channel"]
    assert result.state == "problem"
    assert "127.0.0.1:1" in result.seen


def test_no_blocks_are_left_for_a_lease_to_lapse(serve: Callable[[Fake], Fake]) -> None:
    prefill, decode = serve(Engine()), serve(Engine(role="decode"))
    outcomes(prefill=prefill, decode=decode)
    assert len(decode.asked) == len(prefill.asked)


def test_its_requests_are_named_as_its_own(serve: Callable[[Fake], Fake]) -> None:
    prefill, decode = serve(Engine()), serve(Engine(role="decode"))
    outcomes(prefill=prefill, decode=decode)
    assert all(headers["x-request-id"].startswith("kvdiag-probe-") for _, _, headers in prefill.asked + decode.asked)
