"""An endpoint's scheme picks the protocol; what cannot be used is refused with the remedy."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kvdiag.errors import InputError
from kvdiag.exporters import otel


@pytest.mark.parametrize(
    ("url", "protocol", "secure", "traces"),
    [
        ("http://c:4318", "http", False, "http://c:4318/v1/traces"),
        ("https://c/otlp/", "http", True, "https://c/otlp/v1/traces"),
        ("grpc://c:4317", "grpc", False, "c:4317"),
        ("grpcs://c:4317", "grpc", True, "c:4317"),
        ("http://[::1]:4318", "http", False, "http://[::1]:4318/v1/traces"),
    ],
)
def test_scheme_picks_the_protocol(url: str, protocol: str, secure: bool, traces: str) -> None:  # noqa: FBT001
    endpoint = otel.Endpoint.parse(url)
    assert (endpoint.protocol, endpoint.secure, endpoint.url("traces")) == (protocol, secure, traces)


@pytest.mark.parametrize("url", ["collector:4317", "ftp://c", "http://", "", "http:/c"])
def test_an_endpoint_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="write http://HOST:4318"):
        otel.Endpoint.parse(url)


def test_the_resource_says_who_speaks() -> None:
    attributes = otel.resource("kvdiag-router", {"deployment.environment.name": "test"}).attributes
    assert attributes["service.name"] == "kvdiag-router"
    assert attributes["deployment.environment.name"] == "test"
    assert str(attributes["service.instance.id"]).endswith(str(os.getpid()))


def test_the_operators_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=prod,k8s.pod.name=p")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    attributes = otel.resource("kvdiag-router", {}).attributes
    assert (attributes["service.name"], attributes["service.namespace"]) == ("mine", "prod")
    assert attributes["k8s.pod.name"] == "p"


@pytest.mark.parametrize("face", ["tracing.tracer_from(E, 's')", "push.push_from(E, 's', None)"])
def test_opentelemetry_is_imported_only_where_an_endpoint_is_set(face: str) -> None:
    """And where the extra is missing the error names it."""
    script = f"""
import sys
from kvdiag.errors import MissingExtraError
from kvdiag.exporters import push, tracing
E = None
assert {face} is None
assert not any(name.split(".")[0] == "opentelemetry" for name in sys.modules)
sys.modules["opentelemetry"] = None
E = "http://127.0.0.1:1"
try:
    {face}
except MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    assert "pip install '.[otel]'" in done.stdout
