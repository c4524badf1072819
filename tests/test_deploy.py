"""The deployment examples, as far as they can be checked without a cluster: nothing in them is only text."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from kvdiag.cli.dashboards import command as dashboards
from kvdiag.router.config import load

DEPLOY = Path(__file__).parent.parent / "docs" / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
SECRET = {"KVDIAG_ROUTER__HASH_KEY": "a long random text"}


def transfer_config(arguments: list[str]) -> dict[str, Any]:
    (flag,) = (argument for argument in arguments if argument.startswith("--kv-transfer-config="))
    config: dict[str, Any] = json.loads(flag.partition("=")[2])
    return config


def manifest(kind: str, name: str) -> dict[str, Any]:
    return next(m for m in MANIFESTS if (m["kind"], m["metadata"]["name"]) == (kind, name))


def container(name: str) -> dict[str, Any]:
    found: dict[str, Any] = manifest("Deployment", name)["spec"]["template"]["spec"]["containers"][0]
    return found


@pytest.mark.parametrize("document", MANIFESTS, ids=lambda m: f"{m['kind']}-{m['metadata']['name']}")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_manifest_fits_the_kubernetes_schema(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.31", strict=True)


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        (COMPOSE["services"]["prefill"]["command"], COMPOSE["services"]["decode"]["command"]),
        (container("prefill")["args"], container("decode")["args"]),
    ],
    ids=["compose", "kubernetes"],
)
def test_both_engines_run_the_connector_with_the_same_settings(prefill: list[str], decode: list[str]) -> None:
    ours, theirs = transfer_config(prefill), transfer_config(decode)
    assert (ours.pop("kv_role"), theirs.pop("kv_role")) == ("kv_producer", "kv_consumer")
    assert ours == theirs
    assert ours["kv_connector_module_path"] == "kvdiag.connector"
    assert ours["kv_connector_extra_config"]["bidirectional_kv_xfer"] is True


def test_the_router_takes_both_of_its_files(tmp_path: Path) -> None:
    in_cluster = tmp_path / "router.toml"
    in_cluster.write_text(manifest("ConfigMap", "router")["data"]["router.toml"])
    for file in (DEPLOY / "router.toml", in_cluster):
        assert load(file, SECRET, {}).store.kind == "redis"


def test_the_router_checks_its_file_from_the_command_line() -> None:
    command = [sys.executable, "-m", "kvdiag", "router", "--config", str(DEPLOY / "router.toml"), "--check"]
    done = subprocess.run(command, env=os.environ | SECRET, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_prometheus_takes_the_configuration_with_our_rules(tmp_path: Path) -> None:
    assert CliRunner().invoke(dashboards, ["write", str(tmp_path / "grafana")]).exit_code == 0
    shutil.copy(tmp_path / "grafana" / "kvdiag.rules.yaml", tmp_path)
    shutil.copy(DEPLOY / "prometheus.yml", tmp_path)
    done = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_compose_mounts_and_builds_only_what_is_there_or_written_by_its_first_line() -> None:
    written = {"grafana", "kvdiag.rules.yaml"}
    for name, service in COMPOSE["services"].items():
        sources = [volume.split(":")[0] for volume in service.get("volumes", ())]
        sources += [service["build"]["dockerfile"]] if "build" in service else []
        for source in sources:
            first = Path(source).parts[0]
            assert (DEPLOY / source).exists() or first in written, f"{name} needs {source}"


def test_services_that_depend_on_others_name_existing_ones() -> None:
    services = set(COMPOSE["services"])
    for service in COMPOSE["services"].values():
        assert set(service.get("depends_on", ())) <= services


def test_images_are_pinned() -> None:
    images = [service["image"] for service in COMPOSE["services"].values() if "image" in service]
    images += [container(name)["image"] for name in ("router", "redis", "prefill", "decode")]
    assert [image for image in images if not re.search(r":[v\d][\w.-]*$", image)] == []


def test_grafana_finds_what_provisioning_names(tmp_path: Path) -> None:
    assert CliRunner().invoke(dashboards, ["write", str(tmp_path)]).exit_code == 0
    variable = COMPOSE["services"]["grafana"]["environment"]["KVDIAG_DASHBOARDS"]
    assert any(volume.endswith(f":{variable}:ro") for volume in COMPOSE["services"]["grafana"]["volumes"])
    providers = yaml.safe_load(next((tmp_path / "provisioning" / "dashboards").iterdir()).read_text())["providers"]
    for provider in providers:
        path = provider["options"]["path"]
        assert path.startswith("${KVDIAG_DASHBOARDS}/")
        assert (tmp_path / path.partition("/")[2]).is_dir()
