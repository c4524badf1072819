"""`kvdiag doctor` and `kvdiag watch` against the real pair."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kvdiag.cli import main
from kvdiag.localstack.agent import Agent

if TYPE_CHECKING:
    from kvdiag.localstack import LocalStack


def run(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def targets(stack: LocalStack) -> list[str]:
    assert stack.router is not None
    return ["--router", stack.router.url, "--prefill", stack.prefills[0].url, "--decode", stack.decodes[0].url]


def checks(out: str) -> dict[str, dict[str, str]]:
    return {check["check"]: check for check in json.loads(out)["checks"]}


def test_reuse_is_proven_and_the_one_wrong_setting_is_named(
    stack: LocalStack, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stack's router keeps handles for 120 s, its decode engine keeps blocks for 20 s."""
    assert run("doctor", *targets(stack), "--format", "json") == 1
    found = checks(capsys.readouterr().out)
    assert {name for name, check in found.items() if check["state"] == "problem"} == {"ttl_order"}
    assert [name for name, check in found.items() if check["state"] == "not evaluated"] == []
    assert found["reuse"]["seen"].startswith("through the router")


def test_driven_by_hand_the_engines_prove_reuse_without_a_router(
    stack: LocalStack, capsys: pytest.CaptureFixture[str]
) -> None:
    run("doctor", *targets(stack)[2:], "--format", "json")
    found = checks(capsys.readouterr().out)
    assert found["reuse"]["state"] == "ok"
    assert found["streaming_handles"]["state"] == "ok"
    assert found["side_channel"]["state"] == "ok"


def test_watch_sees_turns_and_read_backs(stack: LocalStack, capsys: pytest.CaptureFixture[str]) -> None:
    assert stack.router is not None
    agent = Agent(stack.router.port, "watched")
    for _ in range(2):
        agent.say("a prompt that spans some blocks, so that reading it back is worth it; " * 20)
    assert run("watch", *targets(stack), "--once", "--interval", "1") == 0
    out = capsys.readouterr().out
    assert "remote_hit" in out
    assert "down" not in out
