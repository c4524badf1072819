"""One real conversation from end to end: reuse, each honest failure, and the diagnosis of all of them."""

from __future__ import annotations

import json
import time
import urllib.parse
from typing import TYPE_CHECKING, Any

import pytest

from kvdiag.cli import main
from kvdiag.localstack.agent import Agent, complete
from kvdiag.localstack.process import get

if TYPE_CHECKING:
    from kvdiag.localstack import LocalStack

PROMPT = "open the file, read the function, edit the line, run the test and report the result; " * 20


def router_port(stack: LocalStack) -> int:
    assert stack.router is not None
    return stack.router.port


def turns(stack: LocalStack, count: int) -> list[dict[str, Any]]:
    """Return the last `count` turns of the turn log, waiting for its writer."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        time.sleep(0.3)
        lines = stack.turn_log.read_text().splitlines()
        if len(lines) >= count:
            break
    return [json.loads(line) for line in lines[-count:]]


@pytest.mark.parametrize("stream", [False, True], ids=["whole answers", "streamed answers"])
def test_a_four_turn_conversation_is_read_back_from_decode(stack: LocalStack, *, stream: bool) -> None:
    agent = Agent(router_port(stack), f"reuse-{stream}", stream=stream)
    for turn in range(4):
        assert agent.say(f"{turn}: {PROMPT}").status == 200

    log = turns(stack, 4)
    assert [turn["turn"] for turn in log] == [1, 2, 3, 4]
    assert [turn["cause"] for turn in log] == ["first_turn", "remote_hit", "remote_hit", "remote_hit"]
    assert all(turn["remote_tokens"] > 0 for turn in log[1:])
    assert {turn["stream"] for turn in log} == {stream}


def test_an_answer_with_reuse_equals_the_answer_without(stack: LocalStack) -> None:
    agent = Agent(router_port(stack), "equal")
    for turn in range(3):
        answer = agent.say(f"{turn}: {PROMPT}")
        honest = complete(router_port(stack), agent.messages[:-1])
        assert answer.text == honest.text, f"turn {turn + 1} differs from an honest prefill"
    reused = [turn for turn in turns(stack, 6) if turn["cause"] == "remote_hit"]
    assert len(reused) == 2


def test_a_turn_after_decodes_ttl_is_answered_and_named_expired(stack: LocalStack) -> None:
    agent = Agent(router_port(stack), "late")
    agent.say(PROMPT)
    time.sleep(stack.options.decode.decode_ttl_s + 2)
    answer = agent.say("go on: " + PROMPT)

    honest = complete(router_port(stack), agent.messages[:-1])
    assert (answer.status, answer.text) == (200, honest.text)
    assert turns(stack, 2)[0]["cause"] == "expired_remote_read"


def test_a_conversation_without_an_id_is_named_so(stack: LocalStack) -> None:
    agent = Agent(router_port(stack))
    agent.say(PROMPT)
    agent.say("go on: " + PROMPT)
    last = turns(stack, 1)[0]
    assert (last["cause"], last["detail"]) == ("missing_metadata", "no_conversation_id")


def test_a_prompt_below_the_threshold_is_computed(stack: LocalStack) -> None:
    agent = Agent(router_port(stack), "short", parameters={"max_tokens": 1})
    agent.say("hello")
    agent.say("go on")
    assert turns(stack, 1)[0]["cause"] == "below_threshold"


def test_clients_never_see_handles_or_addresses(stack: LocalStack) -> None:
    for stream in (False, True):
        agent = Agent(router_port(stack), f"private-{stream}", stream=stream)
        body = json.dumps(agent.say(PROMPT).body)
        assert "kv_transfer_params" not in body
        assert "remote_engine_id" not in body
        assert "kvdiag" not in body


def test_prometheus_sees_what_happened(stack: LocalStack) -> None:
    assert stack.prometheus is not None
    agent = Agent(router_port(stack), "scraped")
    for turn in range(2):
        agent.say(f"{turn}: {PROMPT}")
    queries = (
        'sum(kvdiag_turns_total{cause="remote_hit"}) > 0',
        'sum(kvdiag_transfer_bytes_total{direction="decode_to_prefill",job="prefill"}) > 0',
        'sum(kvdiag_transfer_bytes_total{direction="prefill_to_decode",job="decode"}) > 0',
        "sum(kvdiag_retained_requests) > 0",
        "min(up) == 1",
    )
    missing = list(queries)
    deadline = time.monotonic() + 30
    while missing and time.monotonic() < deadline:
        missing = [query for query in missing if not _result(stack.prometheus.port, query)]
        time.sleep(0.5)
    assert missing == []


def _result(port: int, query: str) -> list[object]:
    _, body = get(port, f"/api/v1/query?query={urllib.parse.quote(query)}")
    rows: list[object] = json.loads(body)["data"]["result"]
    return rows


def test_classify_names_what_the_run_did(stack: LocalStack, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs last in this file: the faults above are in the logs by now."""
    with pytest.raises(SystemExit) as ended:
        main(["classify", *map(str, stack.logs), "--format", "json", "--turns"])
    report = json.loads(capsys.readouterr().out)
    assert ended.value.code == 1
    causes = {(finding["cause"], finding["detail"]) for finding in report["findings"]}
    assert ("expired_remote_read", "declined") in causes
    assert ("missing_metadata", "no_conversation_id") in causes
    assert "suspect_kv" not in {cause for cause, _ in causes}
    seen = {turn["cause"] for turn in report["per_turn"]}
    assert {"first_turn", "remote_hit", "below_threshold"} <= seen
