"""Each check says ok, problem or what it needs; never ok when the input is missing."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from kvdiag.doctor import CHECKS, Site
from kvdiag.doctor.http import Server
from kvdiag.doctor.samples import Samples
from kvdiag.doctor.site import Service

from .conftest import INFO

if TYPE_CHECKING:
    from kvdiag.doctor.site import Role

ENGINE = 'vllm:num_requests_running 0\nvllm:cache_config_info{block_size="16",cache_dtype="auto"} 1\nvllm:nixl_num_failed_transfers_total 0\n'
ROUTER = "kvdiag_turns_total 1\nkvdiag_router_handle_ttl_seconds 470\nkvdiag_router_store_up 1\n"


def service(role: Role, page: str | None = None, host: str = "h", **more: Any) -> Service:  # noqa: ANN401 - any field
    fields: dict[str, Any] = {"version": "0.32.0", "models": ("tiny",), "clock_s": 0.2} | more
    samples = Samples.parse(page) if page is not None else None
    return Service(role, Server.parse(f"http://{role}-{host}:1"), samples=samples, **fields)


def engine(role: Role, page: str = "", **more: Any) -> Service:  # noqa: ANN401 - any field
    return service(role, ENGINE + (page or INFO.format(role=role)), **more)


def site(router: Service | None = None, prefill: Service | None = None, decode: Service | None = None) -> Site:
    return Site(router, (prefill,) if prefill else (), (decode,) if decode else ())


HEALTHY = site(service("router", ROUTER), engine("prefill"), engine("decode"))
STOCK = site(service("router", "x 1\n"), service("prefill", ENGINE), service("decode", ENGINE))
BARE = site(service("router"), service("prefill", version=None, models=()), service("decode"))


def states(of: Site) -> dict[str, str]:
    return {check.name: check.run(of).state for check in CHECKS}


def test_a_healthy_site_has_no_problem_and_leaves_nothing_open() -> None:
    assert set(states(HEALTHY).values()) == {"ok"}


def test_a_stock_site_is_judged_only_where_it_tells() -> None:
    assert states(STOCK) == {
        "reachable": "ok",
        "metrics": "ok",
        "roles": "not evaluated",
        "versions": "ok",
        "models": "ok",
        "kv_layout": "ok",
        "connector": "ok",
        "bidirectional": "not evaluated",
        "flags": "not evaluated",
        "failure_policy": "not evaluated",
        "ttl_order": "not evaluated",
        "store": "not evaluated",
        "clocks": "ok",
        "failures": "ok",
    }


def test_nothing_is_ok_where_no_metrics_are_served() -> None:
    judged = states(BARE)
    assert judged["metrics"] == "problem"
    assert {judged[name] for name in ("connector", "bidirectional", "flags", "ttl_order", "failures", "versions")} == {
        "not evaluated"
    }


@pytest.mark.parametrize("behind", [None, service("router", "x 1\n")])
def test_a_prefill_that_computes_what_a_read_did_not_bring_needs_no_router_of_ours(behind: Service | None) -> None:
    of = site(behind, engine("prefill", changed("prefill", '"fail"', '"recompute"')))
    assert states(of)["failure_policy"] == "ok"


def changed(role: str, before: str, after: str) -> str:
    page = INFO.format(role=role)
    assert before in page
    return page.replace(before, after)


@pytest.mark.parametrize(
    ("check", "broken", "seen"),
    [
        ("reachable", site(engine("prefill", problem="Connection refused")), "Connection refused"),
        ("metrics", site(service("router", ""), engine("prefill")), "router"),
        ("metrics", site(prefill=service("prefill", "python_info 1\n")), "prefill"),
        ("versions", site(None, engine("prefill", version="0.31.0"), engine("decode")), "0.31.0"),
        ("roles", site(None, engine("prefill", INFO.format(role="decode"))), "prefill-h:1 says that it is decode"),
        ("models", site(None, engine("prefill", models=("other",)), engine("decode")), "other"),
        (
            "kv_layout",
            site(None, engine("prefill", changed("prefill", 'block_size="16"', 'block_size="128"')), engine("decode")),
            "128",
        ),
        (
            "kv_layout",
            site(None, service("prefill", ENGINE.replace("auto", "fp8")), service("decode", ENGINE)),
            "KV dtype differs: fp8",
        ),
        ("connector", site(None, service("prefill", "vllm:num_requests_running 0\n"), engine("decode")), "prefill"),
        (
            "bidirectional",
            site(
                None,
                engine("prefill"),
                engine("decode", changed("decode", 'bidirectional="true"', 'bidirectional="false"')),
            ),
            "decode",
        ),
        ("flags", site(None, engine("prefill"), engine("decode", changed("decode", "480", "60"))), "ttl_seconds"),
        ("failure_policy", site(service("router", "x 1\n"), engine("prefill")), "not kvdiag's"),
        ("ttl_order", site(service("router", ROUTER.replace("470", "476")), None, engine("decode")), "476"),
        ("store", site(service("router", ROUTER.replace("store_up 1", "store_up 0"))), "down"),
        ("clocks", site(engine("prefill", clock_s=-7.0)), "-7 s"),
        ("failures", site(None, engine("prefill", "kvdiag_connector_errors_total 3\n")), "= 3"),
    ],
)
def test_each_fault_is_found_and_comes_with_a_remedy(check: str, broken: Site, seen: str) -> None:
    result = next(item for item in CHECKS if item.name == check).run(broken)
    assert result.state == "problem", result.seen
    assert seen in result.seen
    assert result.remedy


FAILED = "vllm:nixl_num_failed_transfers_total"


def failing(failed: float, transfers: float | None = None) -> Site:
    page = f"{FAILED} {failed}\nprocess_start_time_seconds 1\n"
    if transfers is not None:
        page += f"vllm:nixl_xfer_time_seconds_count {transfers}\n"
    return site(None, service("prefill", page))


@pytest.mark.parametrize(
    ("now", "before", "state", "seen"),
    [
        (failing(7, 10_000), failing(5, 10_000), "problem", "while this ran: vllm:nixl_num_failed_transfers_total +2"),
        (failing(5, 10_000), failing(5, 9_000), "ok", "since its start"),
        (failing(500, 10_000), failing(500, 10_000), "problem", "none while this ran"),
        (failing(5), None, "problem", "since its start"),
        (failing(5, 10_000), None, "ok", "since its start"),
        (failing(0), None, "ok", "no failed transfer since start"),
    ],
)
def test_failures_count_when_they_happen_or_are_many(now: Site, before: Site | None, state: str, seen: str) -> None:
    result = CHECKS[-1].run(dataclasses.replace(now, earlier=before))
    assert (result.check, result.state) == ("failures", state)
    assert seen in result.seen


def test_an_engine_of_both_roles_may_be_either() -> None:
    both = INFO.format(role="both")
    assert states(site(None, engine("prefill", both), engine("decode", both)))["roles"] == "ok"


@pytest.mark.parametrize(("router", "state"), [("475", "ok"), ("475.1", "problem")])
def test_the_router_must_let_go_a_margin_before_decode(router: str, state: str) -> None:
    page = f"kvdiag_turns_total 1\nkvdiag_router_handle_ttl_seconds {router}\n"
    assert states(site(service("router", page), None, engine("decode")))["ttl_order"] == state


def test_a_gauge_of_the_ttl_wins_over_the_label() -> None:
    decode = engine("decode", INFO.format(role="decode") + "kvdiag_retention_ttl_seconds 100\n")
    assert states(site(service("router", ROUTER), None, decode))["ttl_order"] == "problem"


def test_check_names_are_unique_and_questions_end_as_such() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(check.asks.endswith("?") and check.remedy for check in CHECKS)
