"""A stock pair with two faults: reading back is off on decode, and streamed answers carry no handle."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kvdiag.cli import main
from kvdiag.localstack import EngineOptions, LocalStack, StackOptions

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    options = StackOptions(
        prefill=EngineOptions(connector="stock"),
        decode=EngineOptions(connector="stock", bidirectional=False),
        router_arguments=None,
    )
    with LocalStack(tmp_path_factory.mktemp("faulty"), options) as running:
        yield running


def diagnosed(stack: LocalStack, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    """Return the doctor's findings; the first contact of two engines fails on a machine that is too busy for it."""
    urls = ["--prefill", stack.prefills[0].url, "--decode", stack.decodes[0].url]
    for _ in range(3):
        with pytest.raises(SystemExit) as ended:
            main(["doctor", *urls, "--format", "json"])
        assert ended.value.code == 1
        found = {check["check"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
        if not found["reuse"]["seen"].startswith("the hand-off"):
            break
    return found


def test_the_broken_link_of_a_stock_pair_is_named(faulty: LocalStack, capsys: pytest.CaptureFixture[str]) -> None:
    found = diagnosed(faulty, capsys)
    assert found["reuse"]["state"] == "problem"
    assert found["reuse"]["seen"] == "decode's answer carried no handle"
    assert "decode's kv_connector_extra_config" in found["reuse"]["remedy"]
    assert found["connector"]["seen"] == "prefill: stock NIXL, decode: stock NIXL"
    assert found["kv_layout"]["state"] == "ok"
    assert found["bidirectional"]["state"] == "not evaluated"
