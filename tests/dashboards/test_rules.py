"""Rules through the real promtool: every alert fires on its fault, alone, and none on what is normal."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from kvdiag.causes import CAUSES
from kvdiag.dashboards import rules
from kvdiag.dashboards.alerts import BUDGETS, alerts, camel
from kvdiag.dashboards.board import panel_id
from kvdiag.dashboards.settings import Settings

DIRECTORY: Final = Path(__file__).parents[2] / "dashboards"
Series = dict[str, str]
"""PromQL series to promtool's notation of its values, a minute apart."""


def promtool(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *arguments], cwd=directory, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("name", ["kvdiag.rules.yaml", "kvdiag-genai.rules.yaml"])
def test_rule_files_pass_the_linter(name: str) -> None:
    done = promtool("check", "rules", "--lint-fatal", name, directory=DIRECTORY)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_prometheus_configuration_is_valid() -> None:
    done = promtool("check", "config", "prometheus.yaml", directory=DIRECTORY)
    assert done.returncode == 0, done.stdout + done.stderr


def turns(cause: str, values: str, turn: str = "2-4", detail: str = "") -> Series:
    return {f'kvdiag_turns_total{{job="router",cause="{cause}",detail="{detail}",turn="{turn}"}}': values}


def ttft(within: str, count: str) -> Series:
    labels = 'job="router",cause="remote_hit",turn="2-4",arm="reuse"'
    return {
        f'kvdiag_turn_ttft_seconds_bucket{{{labels},le="2.0"}}': within,
        f'kvdiag_turn_ttft_seconds_bucket{{{labels},le="+Inf"}}': count,
        f"kvdiag_turn_ttft_seconds_count{{{labels}}}": count,
    }


def info(instance: str, values: str = "1x120", *, job: str = "engines", **labels: str) -> Series:
    settings = {"role": "prefill", "bidirectional": "true", "block_size": "16", "vllm": "0.32.0", "nixl": "1.5.1"}
    text = ",".join(f'{name}="{value}"' for name, value in {**settings, **labels}.items())
    return {f'kvdiag_connector_info{{job="{job}",instance="{instance}",{text}}}': values}


def waiting(instance: str, values: str) -> Series:
    return {f'vllm:num_requests_waiting{{job="engines",instance="{instance}"}}': values}


def running(instance: str, values: str = "1x120") -> Series:
    return {f'vllm:num_requests_running{{job="engines",instance="{instance}"}}': values}


def retained(instance: str, share: str) -> Series:
    where = f'{{job="engines",instance="{instance}"}}'
    return {f"kvdiag_retained_blocks{where}": share, f"kvdiag_kv_cache_blocks{where}": "1000x120"}


def expiries(kind: str, values: str) -> Series:
    return {f'kvdiag_expiries_total{{job="engines",instance="e",kind="{kind}"}}': values}


def queued(instance: str, seconds: str, count: str = "0+10x120") -> Series:
    where = f'{{job="engines",instance="{instance}"}}'
    name = "vllm:request_queue_time_seconds"
    return {f"{name}_sum{where}": seconds, f"{name}_count{where}": count}


def moved(size: str, seconds: str, count: str) -> Series:
    where = '{job="engines",instance="p",direction="decode_to_prefill"}'
    return {
        f"kvdiag_transfer_bytes_total{where}": size,
        f"kvdiag_transfer_seconds_sum{where}": seconds,
        f"kvdiag_transfer_seconds_count{where}": count,
    }


def in_router(quick: str, all_: str) -> Series:
    where = 'job="router",instance="r"'
    return {
        f'kvdiag_router_seconds_bucket{{{where},le="0.001"}}': quick,
        f'kvdiag_router_seconds_bucket{{{where},le="1.0"}}': all_,
        f'kvdiag_router_seconds_bucket{{{where},le="+Inf"}}': all_,
        f"kvdiag_router_seconds_count{{{where}}}": all_,
    }


def traffic(values: str = "0+10x120") -> Series:
    return turns("remote_hit", values) | turns("first_turn", values, "1") | ttft(values, values)


@dataclass(frozen=True)
class Case:
    """What happens, when to look, and which alerts fire then."""

    name: str
    series: Series
    minute: int
    fires: tuple[str, ...] = ()


FIRES: Final = (
    *(
        Case(
            f"{budget.cause} above its budget",
            traffic() | turns(budget.cause, "0+40x60"),
            40,
            (f"Kvdiag{camel(budget.cause)}",),
        )
        for budget in BUDGETS
    ),
    Case(
        "most later turns are slow",
        turns("remote_hit", "0+10x600") | ttft("0+2x600", "0+10x600"),
        400,
        ("KvdiagTtftBurnFast", "KvdiagTtftBurnSlow", "KvdiagTtftBurnDays"),
    ),
    Case(
        "four in ten later turns are slow for hours",
        turns("remote_hit", "0+10x600") | ttft("0+6x600", "0+10x600"),
        400,
        ("KvdiagTtftBurnSlow", "KvdiagTtftBurnDays"),
    ),
    Case(
        "one in ten later turns is slow for days",
        turns("remote_hit", "0+10x4400") | ttft("0+9x4400", "0+10x4400"),
        4380,
        ("KvdiagTtftBurnDays",),
    ),
    Case("requests wait two seconds for a slot", queued("p", "0+20x120"), 40, ("KvdiagQueueing",)),
    Case(
        "the network is a tenth as fast as yesterday",
        moved("0+1000x1560", "0+10x1500 15010+100x60", "0+10x1560"),
        1540,
        ("KvdiagSlowTransfer",),
    ),
    Case("turns spend most of a second in the router", in_router("0+1x120", "0+10x120"), 40, ("KvdiagRouterOverhead",)),
    Case(
        "reuse falls to a fifth of yesterday's",
        turns("remote_hit", "0+10x1500 15000+2x60") | turns("below_threshold", "0x1500 0+8x60"),
        1540,
        ("KvdiagReuseDrop",),
    ),
    Case(
        "half of the prompt tokens are lost to one cause",
        traffic()
        | {
            'kvdiag_lost_tokens_total{job="engines",cause="prefix_diverged",detail="in_history"}': "0+500x60",
            'kvdiag_prompt_tokens_total{job="router",source="computed"}': "0+1000x60",
            'kvdiag_prompt_tokens_total{job="router",source="lost"}': "0+500x60",
        },
        40,
        ("KvdiagTokensLost",),
    ),
    Case(
        "one read of freed blocks",
        traffic() | expiries("read_after_release", "0x20 1x40"),
        22,
        ("KvdiagSuspectKv",),
    ),
    Case("leases lapse on prefill", expiries("lease_lapsed", "0+1x60"), 30, ("KvdiagExpiredHandoff",)),
    Case(
        "transfers fail",
        {'kvdiag_transfer_failures_total{job="engines",instance="e",direction="decode_to_prefill"}': "0+1x60"},
        30,
        ("KvdiagTransferFailed",),
    ),
    Case(
        "held memory squeezes out work",
        retained("d", "400x60") | waiting("d", "5x60"),
        30,
        ("KvdiagRetainedSqueeze",),
    ),
    Case(
        "telemetry loses events",
        {'kvdiag_dropped_events_total{job="router",sink="jsonl"}': "0+50x60"},
        40,
        ("KvdiagEventsDropped",),
    ),
    Case(
        "the feature is on at one role only",
        info("p") | info("d", role="decode", bidirectional="false"),
        40,
        ("KvdiagConfigMismatch",),
    ),
    Case(
        "the router sends handles for longer than decode keeps blocks",
        {"kvdiag_router_handle_ttl_seconds": "478x60", "kvdiag_retention_ttl_seconds": "480x60"},
        20,
        ("KvdiagTtlOrder",),
    ),
    Case(
        "one of two engines lost its connector",
        info("a") | running("a") | running("b"),
        30,
        ("KvdiagConnectorAbsent",),
    ),
    Case(
        "a job's metrics are gone",
        {'kvdiag_build_info{job="router",instance="r",version="1"}': "1x30 _x60"},
        60,
        ("KvdiagMetricsAbsent",),
    ),
    Case(
        "the handle store is down",
        {'kvdiag_router_store_up{job="router",instance="r"}': "1x10 0x50"},
        20,
        ("KvdiagRouterStoreDown",),
    ),
)

EVERY_CAUSE: Final = [cause.name for cause in CAUSES.values()]


def every_cause(values: str) -> Series:
    merged: Series = {}
    for cause in EVERY_CAUSE:
        merged |= turns(cause, values)
    return merged


QUIET: Final = (
    Case("healthy traffic", traffic() | info("p") | info("d", role="decode") | running("p") | running("d"), 100),
    Case("idle", traffic("0x120") | every_cause("7x120") | expiries("read_after_release", "3x120"), 100),
    Case(
        "low traffic in which every turn fails and is slow",
        every_cause("0x15 1x15 2x15 3x15") | ttft("0x60", "0x15 1x15 2x15 3x15"),
        55,
    ),
    Case(
        "every process restarts and counts from nothing",
        traffic("0+10x40 0+10x40")
        | dict.fromkeys((*expiries("read_after_release", ""), *expiries("lease_lapsed", "")), "0x40 _x2 0x40")
        | info("d", "1x40 _x2", role="decode", engine_id="old")
        | info("d", "_x42 1x40", role="decode", engine_id="new")
        | running("d", "1x40 _x2 1x40")
        | queued("d", "0+5x40 0+5x40", "0+10x40 0+10x40")
        | moved("0+1000x40 0+1000x40", "0+10x40 0+10x40", "0+10x40 0+10x40")
        | in_router("0+10x40 0+10x40", "0+10x40 0+10x40")
        | {'kvdiag_build_info{job="router",instance="r",version="1"}': "1x40 _x2 1x40"}
        | {'kvdiag_router_store_up{job="router",instance="r"}': "1x40 0 1x40"},
        46,
    ),
    Case(
        "conversations end and their blocks expire on decode",
        traffic()
        | expiries("idle_ended", "0+20x400")
        | {'kvdiag_retained_byte_seconds_total{job="engines",instance="e",release="expired"}': "0+900000000x400"}
        | {"vllm:nixl_num_kv_expired_reqs_total": "0+20x400"},
        100,
    ),
    Case(
        "one in twenty-five later turns is slow for days: what the objective allows",
        turns("remote_hit", "0+100x4400") | ttft("0+96x4400", "0+100x4400"),
        4380,
    ),
    Case(
        "slow turns of two days ago are over",
        turns("remote_hit", "0+10x4400") | ttft("0+5x1400 7010+10x3000", "0+10x4400"),
        4380,
    ),
    Case(
        "a few requests waited, a few transfers were slow, a few turns stayed in the router",
        queued("p", "0x1500 0+9x4 36x60", "0x1500 0+1x4 4x60")
        | moved("0+1000x1500 1500000+10x4 1500040x60", "0+10x1500 15000+10x4 15040x60", "0+10x1500 15000+1x4 15004x60")
        | in_router("0x1500 0x60", "0x1500 0+1x4 4x60"),
        1525,
    ),
    Case(
        "transfers stop",
        moved("0+1000x1500 1500000x60", "0+10x1500 15000x60", "0+10x1500 15000x60"),
        1530,
    ),
    Case("requests wait as they always did", queued("p", "0+5x120") | in_router("0+10x120", "0+10x120"), 100),
    Case("a fault of two minutes", traffic() | turns("expired_remote_read", "0x30 0+30x2 60x60"), 33),
    Case(
        "a rollout mixes versions for twenty minutes",
        info("p", "1x20 _x40") | info("p", "_x20 1x40", vllm="0.33.0") | info("d", "1x60", vllm="0.33.0"),
        25,
    ),
    Case("much memory held while nothing waits", retained("d", "600x60") | waiting("d", "0x60"), 40),
    Case("requests wait while little memory is held", retained("d", "100x60") | waiting("d", "9x60"), 40),
    Case("engines of another job have no connector", info("a") | running("a") | {
        'vllm:num_requests_running{job="other",instance="x"}': "1x60"}, 40),
    Case("hold-out turns are many and slow", traffic() | turns("missing_metadata", "0+40x120", detail="holdout") | {
        'kvdiag_turn_ttft_seconds_count{job="router",cause="missing_metadata",turn="2-4",arm="holdout"}': "0+9x400",
        'kvdiag_turn_ttft_seconds_bucket{job="router",cause="missing_metadata",turn="2-4",arm="holdout",le="2.0"}': "0x400",
    }, 100),
)  # fmt: skip


def unit_test(case: Case) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "promql_expr_test": [
            {
                "expr": 'max by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{case.minute}m",
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in case.fires],
            }
        ],
    }


@pytest.mark.parametrize("case", [*FIRES, *QUIET], ids=lambda case: case.name)
def test_exactly_the_right_alerts_fire(case: Case, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(rules.to_yaml(rules.rule_file(Settings())))
    test = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [unit_test(case)]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    done = promtool("test", "rules", "test.yaml", directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    fired = {name for case in FIRES for name in case.fires}
    assert fired == {alert.name for alert in alerts(Settings())}


def test_labels_and_words_of_a_firing_alert(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(
        rules.to_yaml(rules.rule_file(Settings(grafana_url="https://grafana.example")))
    )
    case = next(case for case in FIRES if case.name.startswith("the feature is on"))
    rule = {
        "alertname": "KvdiagConfigMismatch",
        "eval_time": "40m",
        "exp_alerts": [
            {
                "exp_labels": {"severity": "ticket", "setting": "bidirectional"},
                "exp_annotations": {
                    "summary": "2 different values of bidirectional among prefill and decode engines",
                    "description": "Waits half an hour because a rollout mixes versions for a while.",
                    "runbook_url": "https://grafana.example/d/kvdiag-runbook-feature_off",
                    "runbook_command": "kvdiag runbook feature_off",
                    **_panel("overview", "Prefill engines with connector"),
                },
            }
        ],
    }
    test = {"interval": "1m", "input_series": unit_test(case)["input_series"], "alert_rule_test": [rule]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [test]}))
    done = promtool("test", "rules", "test.yaml", directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def _panel(board: str, title: str) -> dict[str, str]:
    number = panel_id(title)
    return {
        "dashboard_url": f"https://grafana.example/d/kvdiag-{board}?viewPanel={number}",
        "__dashboardUid__": f"kvdiag-{board}",
        "__panelId__": str(number),
    }
