"""Provisioning files: Grafana reads them at its start, Prometheus includes the scrape jobs."""

from __future__ import annotations

from typing import Any, Final

EXEMPLAR_LABEL: Final = "trace_id"
"""As `Span.exemplar` writes it; Grafana needs the same name to link a diamond to its trace."""


def data_sources() -> dict[str, Any]:
    """Return Prometheus with exemplars that lead to a trace, and Tempo."""
    return {
        "apiVersion": 1,
        "datasources": [
            {
                "name": "Prometheus",
                "uid": "prometheus",
                "type": "prometheus",
                "access": "proxy",
                "url": "${PROMETHEUS_URL}",
                "isDefault": True,
                "jsonData": {
                    "httpMethod": "POST",
                    "exemplarTraceIdDestinations": [{"name": EXEMPLAR_LABEL, "datasourceUid": "tempo"}],
                },
            },
            {"name": "Tempo", "uid": "tempo", "type": "tempo", "access": "proxy", "url": "${TEMPO_URL}"},
        ],
    }


def dashboard_providers() -> dict[str, Any]:
    """Return the folders from which Grafana loads the boards; `KVDIAG_DASHBOARDS` is where `write` put them."""

    def provider(folder: str, path: str) -> dict[str, Any]:
        return {
            "name": folder,
            "folder": folder,
            "type": "file",
            "allowUiUpdates": False,
            "options": {"path": f"${{KVDIAG_DASHBOARDS}}/{path}"},
        }

    return {
        "apiVersion": 1,
        "providers": [provider("kvdiag", "boards"), provider("kvdiag runbooks", "runbooks")],
    }


def prometheus() -> dict[str, Any]:
    """Return a Prometheus configuration to start from: one job per role, the rules, exemplars need a flag."""

    def job(name: str, target: str) -> dict[str, Any]:
        return {"job_name": name, "static_configs": [{"targets": [target]}]}

    return {
        "global": {"scrape_interval": "15s", "evaluation_interval": "30s"},
        "rule_files": ["kvdiag.rules.yaml"],
        "scrape_configs": [
            job("kvdiag-router", "router:8000"),
            job("vllm-prefill", "prefill:8100"),
            job("vllm-decode", "decode:8200"),
        ],
    }
