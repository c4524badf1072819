"""Every runbook on a real pair: its fault is provoked with its own commands, and its diagnosis prints what it says.

The shared pair serves the pages about histories and handles. A second one is made to suffer: its prefill runs one request
at a time and has a short lease, its decode has a small cache and a short TTL, and is killed twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from tests.e2e.conftest import warm_up
from tests.e2e.scraped import ask, fresh, when

from kvdiag import runbooks
from kvdiag.dashboards import files, rules
from kvdiag.dashboards.settings import Settings
from kvdiag.localstack import EngineOptions, LocalStack, Service, StackOptions
from kvdiag.localstack.agent import complete
from kvdiag.localstack.stack import ENVIRONMENT, START_TIMEOUT_S
from kvdiag.runbooks import Step

if TYPE_CHECKING:
    from collections.abc import Iterator

ON_THE_SHARED_PAIR: Final = (
    "triage",
    "first_turn",
    "remote_hit",
    "below_threshold",
    "missing_metadata",
    "prefix_diverged",
    "compute_bound",
    "client",
    "router_overhead",
    "unexplained",
)
ON_THE_POOR_PAIR: Final = (
    "queueing",
    "kv_pressure",
    "expired_handoff",
    "expired_remote_read",
    "suspect_kv",
    "slow_transfer",
    "transfer_failed",
    "peer_unreachable",
    "upstream_error",
    "local_hit",
    "feature_off",
)
"""In this order: two of them kill decode, and the last ones need engines that are started another way."""
COUNTED: Final = {
    "triage": "kvdiag_turns_total > 0",
    "compute_bound": 'kvdiag_turn_ttft_by_prompt_seconds_count{reused="yes",prompt!="<1k"} > 0',
    "router_overhead": "kvdiag_router_seconds_count > 0",
    "unexplained": "up == 1",
    "queueing": "max_over_time(vllm:num_requests_waiting[15m]) > 0",
    "kv_pressure": "max_over_time(kvdiag_retained_blocks[15m]) / kvdiag_kv_cache_blocks > 0.3",
    "expired_handoff": 'kvdiag_expiries_total{kind="lease_lapsed"} > 0',
    "suspect_kv": 'kvdiag_expiries_total{kind="read_after_release"} > 0',
    "slow_transfer": 'kvdiag_transfer_seconds_count{direction="decode_to_prefill"} > ignoring (le) '
    'kvdiag_transfer_seconds_bucket{direction="decode_to_prefill",le="2.5"}',
    "transfer_failed": "kvdiag_transfer_failures_total > 0",
    "peer_unreachable": 'kvdiag_lost_tokens_total{cause="peer_unreachable"} > 0',
    "feature_off": 'kvdiag_connector_info{bidirectional="false"}',
}
"""What has a result only once the fault of a page has happened; for the others a turn is counted with the cause itself."""
PATIENCE_S: Final = 120.0
"""How long a fault may take to show on a busy machine: scrapes are a second apart, leases and TTLs end by themselves."""
TTL_S, LEASE_S = 15, 5


@pytest.fixture(scope="module")
def poor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    options = StackOptions(
        prefill=EngineOptions(
            prefix_caching=False, decode_ttl_s=TTL_S, lease_s=LEASE_S, arguments=("--max-num-seqs", "1")
        ),
        decode=EngineOptions(decode_ttl_s=TTL_S, arguments=("--num-gpu-blocks-override", "200")),
        router_arguments=("--handle-ttl", "120"),
        prometheus=True,
        rules=(quick_rules(tmp_path_factory.mktemp("rules")),),
    )
    with LocalStack(tmp_path_factory.mktemp("poor"), options) as running:
        warm_up(running)
        yield running


def quick_rules(folder: Path) -> Path:
    """Write the shipped rules, evaluated as often as this Prometheus scrapes."""
    document = rules.rule_file(Settings())
    for group in document["groups"]:
        group["interval"] = "1s"
    file = folder / "kvdiag.rules.yaml"
    file.write_text(rules.to_yaml(document))
    return file


def test_every_page_is_executed() -> None:
    assert sorted((*ON_THE_SHARED_PAIR, *ON_THE_POOR_PAIR)) == sorted(runbooks.names())


@pytest.mark.parametrize("name", ON_THE_SHARED_PAIR)
def test_on_the_shared_pair(name: str, stack: LocalStack) -> None:
    execute(name, stack)


@pytest.mark.parametrize("name", ON_THE_POOR_PAIR)
def test_on_the_poor_pair(name: str, poor: LocalStack) -> None:
    if name == "local_hit":
        restart_with(poor.prefills[0], "--no-enable-prefix-caching", "--enable-prefix-caching")
    if name == "feature_off":  # what the page's own command does, on engines of its own
        restart_with(poor.decodes[0], '"bidirectional_kv_xfer": true', '"bidirectional_kv_xfer": false')
    revive(poor)
    execute(name, poor, provoked=name == "feature_off")


def test_the_page_of_suspect_kv_leads_to_its_panel_and_its_runbook(poor: LocalStack) -> None:
    """The one alert without a `for`: it has fired by now, and its links end where somebody can act."""
    firing = 'ALERTS{alertname="KvdiagSuspectKv",alertstate="firing"}'
    fired_at = when(poor, f"max_over_time({firing}[15m])")
    ((series,),) = ([one["metric"] for one in ask(poor, f"max_over_time({firing}[15m])", fired_at)],)
    assert (series["severity"], series["cause"]) == ("page", "suspect_kv")
    rule = next(r for r in rules.rule_file(Settings())["groups"][-1]["rules"] if r["alert"] == "KvdiagSuspectKv")
    notes = rule["annotations"]
    board = next(d for d in files.documents(Settings(), {}).values() if d["uid"] == notes["__dashboardUid__"])
    panel = next(p for p in board["panels"] if str(p["id"]) == notes["__panelId__"])
    assert float(ask(poor, panel["targets"][0]["expr"], fired_at)[0]["value"][1]) > 0
    assert shell(Step(notes["runbook_command"], None), poor).startswith("# suspect_kv\n")


def restart_with(engine: Service, before: str, after: str) -> None:
    engine.stop()
    engine.command = [str(part).replace(before, after) for part in engine.command]
    engine.start()


def revive(stack: LocalStack) -> None:
    """Start engines again that a page before this one has killed, and wait until the router sends turns to them."""
    for engine in (*stack.prefills, *stack.decodes):
        if engine.pid is None:
            engine.start()
    for engine in (*stack.prefills, *stack.decodes):
        engine.wait_healthy(START_TIMEOUT_S)
    assert stack.router is not None
    deadline = time.monotonic() + PATIENCE_S
    while complete(stack.router.port, [{"role": "user", "content": "are you there"}]).status != 200:
        assert time.monotonic() < deadline, "the router does not send turns to engines that are healthy"
        time.sleep(0.5)
    fresh(stack, "vector(1)")


def execute(name: str, stack: LocalStack, *, provoked: bool = False) -> None:
    page = runbooks.page(name)
    for step in () if provoked else page.steps("How to reproduce here"):
        said = shell(step, stack)
        assert step.matches(said), f"{step.command}\nprinted:\n{said}"
    when(stack, COUNTED.get(name, f'kvdiag_turns_total{{cause="{name}"}} > 0'))
    for step in page.steps("Diagnosis"):
        until_it_matches(step, stack)


def until_it_matches(step: Step, stack: LocalStack) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not step.matches(said := shell(step, stack)):
        if time.monotonic() > deadline:
            pytest.fail(f"{step.command}\nprinted:\n{said}\nnot:\n{step.expected}")
        time.sleep(1)


def shell(step: Step, stack: LocalStack) -> str:
    """Run a page's command as its reader would, in a shell with the stack's variables."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = f". {stack.folder / ENVIRONMENT}\n{step.command}"
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout
