"""Prometheus rule files from the alerts; they load on Prometheus 2.42 and later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml

from kvdiag.dashboards.alerts import (
    CAUSE_SHARE,
    HELD_SHARE,
    LOST_SHARE,
    MISSES,
    OWN_TIME,
    QUEUE_TIME,
    REUSED_SHARE,
    SPEED,
    TURNS,
    Alert,
    alerts,
)
from kvdiag.dashboards.board import UID_PREFIX, panel_id
from kvdiag.dashboards.cause import PREFIX

if TYPE_CHECKING:
    from kvdiag.dashboards.settings import Settings

_LATER: Final = 'turn!="1"'
GENAI: Final = {
    "time_to_first_token": "time_to_first_token",
    "time_per_output_token": "request_time_per_output_token",
    "request_duration": "e2e_request_latency",
}
"""Metrics of a model server in the GenAI semantic conventions, and vLLM's histograms that are the same."""


def recordings(settings: Settings) -> dict[str, str]:
    """Return what the alerts share, as recorded name to expression."""
    later = f'{_LATER},arm="reuse"'
    return {
        TURNS: "sum(increase(kvdiag_turns_total[15m]))",
        CAUSE_SHARE: 'sum by (cause) (increase(kvdiag_turns_total{detail!="holdout"}[15m])) '
        "/ ignoring (cause) group_left () (sum(increase(kvdiag_turns_total[15m])) > 0)",
        LOST_SHARE: 'sum by (cause) (increase(kvdiag_lost_tokens_total{detail!="holdout"}[15m])) / ignoring (cause) group_left () '
        '(sum(increase(kvdiag_prompt_tokens_total{source!="lost"}[15m])) > 0)',
        REUSED_SHARE: f'sum(increase(kvdiag_turns_total{{{_LATER},cause=~"remote_hit|local_hit"}}[15m])) '
        f'/ (sum(increase(kvdiag_turns_total{{{_LATER},detail!="holdout"}}[15m])) > 0)',
        HELD_SHARE: "max by (job, instance) (kvdiag_retained_blocks) "
        "/ (max by (job, instance) (kvdiag_kv_cache_blocks) > 0)",
        QUEUE_TIME: "sum by (job, instance) (rate(vllm:request_queue_time_seconds_sum[15m])) "
        "/ (sum by (job, instance) (rate(vllm:request_queue_time_seconds_count[15m])) > 0)",
        SPEED: "sum by (job, instance, direction) (rate(kvdiag_transfer_bytes_total[15m])) "
        "/ (sum by (job, instance, direction) (rate(kvdiag_transfer_seconds_sum[15m])) > 0)",
        OWN_TIME: "histogram_quantile(0.95, sum by (job, instance, le) (rate(kvdiag_router_seconds_bucket[15m]))) >= 0",
        **{
            f"{MISSES}_{window}": f'1 - sum(rate(kvdiag_turn_ttft_seconds_bucket{{{later},le="{settings.le}"}}[{window}])) '
            f"/ (sum(rate(kvdiag_turn_ttft_seconds_count{{{later}}}[{window}])) > 0)"
            for window in ("5m", "30m", "1h", "6h", "3d")
        },
    }


def rule_file(settings: Settings) -> dict[str, Any]:
    """Return the recording and alerting rules; what looks back over days is not computed twice a minute."""
    recorded = [{"record": name, "expr": expr} for name, expr in recordings(settings).items()]
    alerting = [_rule(alert, settings) for alert in alerts(settings)]
    return {
        "groups": [
            {"name": "kvdiag-recording", "interval": "30s", "rules": [r for r in recorded if not _over_days(r)]},
            {"name": "kvdiag-recording-days", "interval": "5m", "rules": [r for r in recorded if _over_days(r)]},
            {"name": "kvdiag-alerts", "interval": "30s", "rules": alerting},
        ]
    }


def _over_days(rule: dict[str, str]) -> bool:
    return rule["record"].endswith("d")


def genai_file() -> dict[str, Any]:
    """Return rules that give vLLM's own histograms their GenAI names; optional, since they double those series."""
    rules = [
        {
            "record": f"gen_ai_server_{name}_seconds_{part}",
            "expr": f'label_replace(vllm:{source}_seconds_{part}, "gen_ai_request_model", "$1", "model_name", "(.*)")',
            "labels": {"gen_ai_provider_name": "vllm"},
        }
        for name, source in GENAI.items()
        for part in ("bucket", "sum", "count")
    ]
    return {"groups": [{"name": "kvdiag-genai", "interval": "30s", "rules": rules}]}


def to_yaml(document: dict[str, Any]) -> str:
    """Return the text that is committed."""
    return yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)


def _rule(alert: Alert, settings: Settings) -> dict[str, Any]:
    labels = {"severity": alert.severity, **({"cause": alert.cause} if alert.cause else {})}
    uid, panel = UID_PREFIX + alert.board, panel_id(alert.panel)
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.wait,
        "labels": labels,
        "annotations": {
            "summary": alert.summary,
            "description": alert.why,
            "runbook_url": f"{settings.grafana_url}/d/{UID_PREFIX}{PREFIX}{alert.runbook}",
            "runbook_command": f"kvdiag runbook {alert.runbook}",
            "dashboard_url": f"{settings.grafana_url}/d/{uid}?viewPanel={panel}",
            "__dashboardUid__": uid,
            "__panelId__": str(panel),
        },
    }
