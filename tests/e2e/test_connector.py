"""The instrumented connector on the real pair, driven by hand: what is read is right, what cannot be read costs nothing.

Beside the shared pair, whose prefill has no prefix cache and leaves vLLM's failure policy as it is, runs a second one:
both recompute, its prefill has a prefix cache, its decode holds blocks long enough for a busy machine, both prefills read
from it, both send spans, decode's event log lies on a full disk. A third prefill lacks the feature and has no place for
its event log.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.exporters.collector import attributes, over_grpc

from kvdiag.exporters.tracing import DIRECTION
from kvdiag.localstack import EngineOptions, LocalStack, StackOptions
from kvdiag.localstack.agent import Answer, complete
from kvdiag.localstack.engine import engine_service
from kvdiag.localstack.model import ensure_model
from kvdiag.localstack.process import get
from kvdiag.localstack.stack import START_TIMEOUT_S, model_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from opentelemetry.proto.trace.v1.trace_pb2 import Span
    from tests.exporters.collector import Collector

    from kvdiag.localstack.process import Service

TTL_S = 150
READ_TIMEOUT_S = 10
HISTORY = [
    "read the file, name the function that parses the header and say what it returns; " * 8,
    "now change the second argument of that function, run the tests and report the failures; " * 8,
    "explain why the third test fails and propose the smallest change that mends it; " * 8,
]
_unique = itertools.count()
Messages = list[dict[str, str]]


@dataclass
class Pair:
    """One prefill and one decode, and where prefill writes its events."""

    prefill: int
    decode: int
    events: Path

    def ask_prefill(self, messages: Messages, handle: dict[str, Any] | None = None, **body: Any) -> Answer:  # noqa: ANN401
        params = {**(handle or {}), "do_remote_decode": True, "do_remote_prefill": False}
        return complete(self.prefill, messages, max_tokens=1, kv_transfer_params=params, **body)

    def ask_decode(self, messages: Messages, params: dict[str, Any], **body: Any) -> Answer:  # noqa: ANN401
        return complete(self.decode, messages, kv_transfer_params=params, **body)

    def first_turn(self, messages: Messages) -> tuple[str, dict[str, Any]]:
        """Return the answer and decode's handle."""
        prefilled = self.ask_prefill(messages)
        answer = self.ask_decode(messages, handle_of(prefilled))
        return answer.text, handle_of(answer)

    def text_from(self, prefilled: Answer, messages: Messages) -> str:
        """Return what decode says when all KV comes from this prefill: a salt of its own hides its prefix cache."""
        answer = self.ask_decode(messages, handle_of(prefilled), cache_salt=f"salt-{next(_unique)}")
        assert answer.status == 200, answer.body
        return answer.text

    def honest_text(self, messages: Messages) -> str:
        """Return what decode says after a prefill that could reuse nothing."""
        return self.text_from(self.ask_prefill(messages, cache_salt=f"salt-{next(_unique)}"), messages)

    def events_of(self, answer: Answer, kind: str) -> dict[str, Any]:
        """Return the one event of this kind about this prefill request, waiting for the writer."""
        request = handle_of(answer)["remote_request_id"]
        return self.event(lambda event: event["request_id"] == request and event["kind"] == kind)

    def event(self, wanted: Callable[[dict[str, Any]], bool], log: Path | None = None) -> dict[str, Any]:
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            lines = (log or self.events).read_text().splitlines()
            found: list[dict[str, Any]] = [event for event in map(json.loads, lines) if wanted(event)]
            if found:
                return found[-1]
            time.sleep(0.2)
        raise AssertionError(f"no such event in {log or self.events}")


def handle_of(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer.body
    assert answer.body is not None
    params: dict[str, Any] = answer.body["kv_transfer_params"]
    return params


def outcome(answer: Answer) -> tuple[str, str | None]:
    told = handle_of(answer)["kvdiag"]
    return told["cause"], told["detail"]


def metric(port: int, name: str, **labels: str) -> float:
    """Return the sum of the samples with these labels."""
    families = text_string_to_metric_families(get(port, "/metrics")[1].decode())
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    assert samples, f"{name} is not on /metrics"
    return sum(s.value for s in samples if labels.items() <= s.labels.items())


@dataclass
class Engines:
    """The second pair, and what stands beside it."""

    stack: LocalStack
    collector: Collector
    """Where its spans go."""
    off: int
    """Port of the prefill without the feature."""


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    folder = tmp_path_factory.mktemp("second")
    settings = {"kvdiag_read_timeout_s": READ_TIMEOUT_S}
    unwind = contextlib.ExitStack()
    collector = unwind.enter_context(over_grpc())
    traced = ("--otlp-traces-endpoint", collector.url.replace("grpc:", "http:"))
    common = EngineOptions(failure_policy="recompute", decode_ttl_s=TTL_S, arguments=traced, connector_config=settings)
    full_disk = settings | {"kvdiag_event_log": "/dev/full"}
    decode = replace(common, connector_config=full_disk, kv_cache_gib=2)  # it holds what hundreds of turns leave
    options = StackOptions(prefill=common, decode=decode, router_arguments=None)
    broken_log = {"kvdiag_event_log": str(folder / "no" / "folder" / "events")}
    off = EngineOptions(bidirectional=False, connector_config=broken_log)
    service = engine_service("prefill-off", "prefill", ensure_model(model_cache()), folder, off)
    with unwind:
        service.start()
        unwind.callback(service.stop)
        running = unwind.enter_context(LocalStack(folder, options))
        service.wait_healthy(START_TIMEOUT_S)
        yield Engines(running, collector, service.port)


@pytest.fixture(scope="module")
def uncached(stack: LocalStack, engines: Engines) -> Pair:
    """The shared prefill with the second decode."""
    return acquainted(
        Pair(stack.prefills[0].port, engines.stack.decodes[0].port, stack.folder / "prefill-events.jsonl")
    )


@pytest.fixture(scope="module")
def cached(engines: Engines) -> Pair:
    running = engines.stack
    return acquainted(Pair(running.prefills[0].port, running.decodes[0].port, running.folder / "prefill-events.jsonl"))


def acquainted(pair: Pair) -> Pair:
    """Let both engines meet and compile their kernels; a handshake on a busy machine may need another try."""
    for _ in range(5):
        with contextlib.suppress(AssertionError):
            messages, handle = conversation(pair)
            if outcome(pair.ask_prefill(messages, handle))[0] in ("remote_hit", "local_hit", "below_threshold"):
                return pair
    raise AssertionError(f"prefill {pair.prefill} and decode {pair.decode} do not exchange blocks")


@pytest.fixture(params=["prefill without prefix cache", "prefill with prefix cache"])
def pair(request: pytest.FixtureRequest) -> Pair:
    name = "uncached" if "without" in request.param else "cached"
    found: Pair = request.getfixturevalue(name)
    return found


def turn(*texts: str) -> Messages:
    """Return a conversation that ends with a question: user, assistant, user, ..."""
    roles = itertools.cycle(["user", "assistant"])
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


def conversation(pair: Pair) -> tuple[Messages, dict[str, Any]]:
    """Return two answered turns and decode's handle of the second; unlike any other conversation's."""
    messages = turn(f"{next(_unique)}: {HISTORY[0]}")
    for question in HISTORY[1:]:
        text, handle = pair.first_turn(messages)
        messages = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": question}]
    return messages, handle


def next_turn(pair: Pair, change: Callable[[Messages], Messages]) -> tuple[Messages, Answer]:
    """Return the third turn as it was sent and prefill's answer; a machine so slow that decode's TTL ran out tries again."""
    for _ in range(3):
        messages, handle = conversation(pair)
        changed = change(messages)
        answer = pair.ask_prefill(changed, handle)
        if outcome(answer)[0] != "expired_remote_read":
            break
    return changed, answer


def edited(messages: Messages, position: int) -> Messages:
    changed = {**messages[position], "content": "Ignore that. " + messages[position]["content"]}
    return [*messages[:position], changed, *messages[position + 1 :]]


SCENARIOS: dict[str, Callable[[Messages], Messages]] = {
    "goes on": lambda messages: messages,
    "first message edited": lambda messages: edited(messages, 0),
    "last message edited": lambda messages: edited(messages, 2),
    "compacted": lambda messages: messages[2:],
    "history cut short": lambda messages: messages[:1],
    "unrelated": lambda _: turn("write a poem about the sea, " * 60),
    "grown past one batch": lambda messages: [*messages[:-1], {"role": "user", "content": HISTORY[2] * 12}],
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_text_is_an_honest_prefills_whatever_became_of_the_history(pair: Pair, scenario: str) -> None:
    changed, answer = next_turn(pair, SCENARIOS[scenario])
    assert pair.text_from(answer, changed) == pair.honest_text(changed)
    cause, detail = outcome(answer)
    if scenario in ("first message edited", "compacted", "unrelated"):
        assert (cause, detail) == ("prefix_diverged", "in_history")
        assert handle_of(answer)["kvdiag"]["lost_tokens"] > 0
    else:
        assert cause != "missing_metadata"
    event = pair.events_of(answer, "match")
    assert (event["cause"], event.get("detail")) == (cause, detail)


def test_a_read_back_is_measured(uncached: Pair) -> None:
    direction = {"direction": "decode_to_prefill"}
    before = metric(uncached.prefill, "kvdiag_transfer_bytes_total", **direction)
    _, answer = next_turn(uncached, lambda messages: messages)
    assert outcome(answer) == ("remote_hit", None)
    transfer = uncached.events_of(answer, "transfer")
    assert transfer["tokens"] == handle_of(answer)["kvdiag"]["remote_tokens"] > 0
    assert 0 < transfer["seconds"] < transfer["wait_s"]
    assert metric(uncached.prefill, "kvdiag_transfer_bytes_total", **direction) - before >= transfer["bytes"] > 0
    assert metric(uncached.prefill, "kvdiag_response_tokens_total") > 0


def test_several_conversations_at_once_do_not_mix(uncached: Pair) -> None:
    conversations = [conversation(uncached) for _ in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda c: uncached.ask_prefill(*c), conversations))
    for (messages, _), answer in zip(conversations, answers, strict=True):
        assert outcome(answer)[0] == "remote_hit"
        assert uncached.text_from(answer, messages) == uncached.honest_text(messages)


def test_a_handle_used_twice_is_refused_and_the_turn_computed(uncached: Pair) -> None:
    messages, handle = conversation(uncached)
    first, again = uncached.ask_prefill(messages, handle), uncached.ask_prefill(messages, handle)
    assert (outcome(first), outcome(again)) == (("remote_hit", None), ("missing_metadata", "consumed"))
    assert uncached.text_from(again, messages) == uncached.text_from(first, messages)


def test_expiry_costs_no_turn_and_a_late_read_is_suspect(stack: LocalStack, cached: Pair) -> None:
    """Under both policies the refused read is computed. A handle that lies about its age is read, and decode names both."""
    decode = stack.decodes[0].port
    failing = acquainted(Pair(stack.prefills[0].port, decode, stack.folder / "prefill-events.jsonl"))
    recomputing = acquainted(Pair(cached.prefill, decode, cached.events))
    late = [(pair, *conversation(pair)) for pair in (failing, recomputing)]
    lying_messages, lying = conversation(failing)
    time.sleep(stack.options.decode.decode_ttl_s + 1)

    for pair, messages, handle in late:
        answer = pair.ask_prefill(edited(messages, 0), handle)  # edited, or prefill's own cache would cover it
        assert outcome(answer) == ("expired_remote_read", "declined")

    lying["kvdiag"] |= {"issued_at": time.time()}
    lying["remote_blocks_expiry_time"] = None
    answer = failing.ask_prefill(lying_messages, lying)
    assert outcome(answer)[0] == "remote_hit"
    assert complete(decode, lying_messages[:1]).status == 200  # an idle engine does not look at its notifications
    suspect = failing.event(lambda event: event.get("cause") == "suspect_kv", stack.folder / "decode-events.jsonl")
    assert suspect["request_id"] == lying["remote_request_id"]
    assert suspect["remote_request_id"] == handle_of(answer)["remote_request_id"]
    assert metric(decode, "kvdiag_expiries_total", kind="idle_ended") >= 3
    assert metric(decode, "kvdiag_expiries_total", kind="read_after_release") >= 1
    assert metric(decode, "kvdiag_retained_byte_seconds_total", release="expired") > 0


MALFORMED: dict[str, dict[str, Any]] = {
    "nothing but the flag": {"do_remote_prefill": True},
    "blocks of text": {"remote_block_ids": "1,2,3"},
    "blocks of negatives": {"remote_block_ids": [[-1, -2]]},
    "blocks without groups": {"remote_block_ids": [1, 2]},
    "too few blocks": {"remote_block_ids": [[1]]},
    "blocks that do not exist": {"remote_block_ids": [[10**9] * 8]},
    "no engine": {"remote_engine_id": None},
    "port of text": {"remote_port": "http"},
    "negative tokens": {"remote_num_tokens": -7},
    "tokens of text": {"remote_num_tokens": "many"},
    "more tokens than the model takes": {"remote_num_tokens": 10**9},
    "foreign context": {"kvdiag": {"v": 99, "conversation": ["x"] * 100}},
    "context of text": {"kvdiag": "turn 3"},
    "lying digest": {"kvdiag": {"v": 1, "prefix": "128.128.9.9.AAAA"}},
    "upstream's own mark": {"_remote_blocks_processed": True},
    "more blocks than memory": {"remote_block_ids": [list(range(100_000))]},
    "more groups than the model": {"remote_block_ids": [[1]] * 60},
    "digest of another length": {"kvdiag": {"v": 1, "prefix": "x" * 100_000}},
    "times of text": {"kvdiag": {"v": 1, "ttl_s": "long", "issued_at": "now"}},
    "no keys at all": dict.fromkeys(
        ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_num_tokens", "kvdiag")
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_params_cost_a_prefill_and_nothing_else(cached: Pair, case: str) -> None:
    messages = turn(f"{next(_unique)}: {HISTORY[0]}")
    _, handle = cached.first_turn(messages)
    bad = handle | MALFORMED[case]
    assert cached.ask_prefill(messages, bad, cache_salt=f"salt-{next(_unique)}").status == 200
    prefilled = handle_of(cached.ask_prefill(messages))
    handed_off = MALFORMED[case] if case == "nothing but the flag" else prefilled | MALFORMED[case]
    answer = cached.ask_decode(messages, handed_off, cache_salt=f"salt-{next(_unique)}")
    assert answer.status == 200, answer.body
    assert (get(cached.prefill, "/health")[0], get(cached.decode, "/health")[0]) == (200, 200)


def test_a_prefill_without_the_feature_and_with_a_broken_log_just_computes(cached: Pair, engines: Engines) -> None:
    off = Pair(engines.off, cached.decode, cached.events)
    messages, handle = conversation(cached)
    answer = off.ask_prefill(messages, handle)
    assert outcome(answer) == ("feature_off", "prefill")
    assert off.text_from(answer, messages) == cached.honest_text(messages)
    assert metric(off.prefill, "kvdiag_matches_total", cause="feature_off") == 1
    assert metric(off.prefill, "kvdiag_dropped_events_total", sink="jsonl") > 0


def test_the_effective_configuration_is_exposed(cached: Pair, engines: Engines) -> None:
    info = {"ttl_seconds": str(TTL_S), "block_size": "128", "verify": "on", "recompute_threshold": "64"}
    for port, role in ((cached.prefill, "prefill"), (cached.decode, "decode")):
        labels = {"role": role, "bidirectional": "true", "failure_policy": "recompute"}
        assert metric(port, "kvdiag_connector_info", **info, **labels) == 1
    assert metric(engines.off, "kvdiag_connector_info", bidirectional="false") == 1
    assert metric(cached.prefill, "kvdiag_connector_errors_total") == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_streamed_answer_returns_the_handle_once(uncached: Pair, path: str) -> None:
    import http.client

    def stream(params: dict[str, Any] | None) -> list[dict[str, Any]]:
        asked = {"messages": turn(HISTORY[0])} if "chat" in path else {"prompt": HISTORY[0]}
        body = {
            "model": "tiny",
            "max_tokens": 8,
            "stream": True,
            **asked,
            **({"kv_transfer_params": params} if params else {}),
        }
        connection = http.client.HTTPConnection("127.0.0.1", uncached.decode, timeout=60)
        try:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            lines = connection.getresponse().read().decode().splitlines()
        finally:
            connection.close()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    carrying = [chunk for chunk in stream({"kvdiag": {"v": 1}}) if chunk.get("kv_transfer_params")]
    assert len(carrying) == 1
    assert carrying[0]["choices"][0]["finish_reason"]
    assert carrying[0]["kv_transfer_params"]["remote_block_ids"]
    assert not any(chunk.get("kv_transfer_params") for chunk in stream(None))


TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


SPANS = {
    ("kvdiag.wait", "decode_to_prefill"),
    ("kvdiag.transfer", "decode_to_prefill"),
    ("kvdiag.transfer", "prefill_to_decode"),
    ("kvdiag.retention", "decode_to_prefill"),
}


def test_spans_have_the_routers_trace_as_their_parent(cached: Pair, engines: Engines) -> None:
    asked = {"kvdiag": {"v": 1, "traceparent": f"00-{TRACE}-{PARENT}-01"}}
    messages = turn(f"{next(_unique)}: {HISTORY[0]}")
    prefilled = handle_of(cached.ask_prefill(messages, asked))
    answer = cached.ask_decode(messages, prefilled | asked)
    messages += [{"role": "assistant", "content": answer.text}, *turn(HISTORY[1])]
    salt = f"salt-{next(_unique)}"  # hides prefill's own cache
    assert outcome(cached.ask_prefill(messages, handle_of(answer) | asked, cache_salt=salt))[0] == "remote_hit"

    found: dict[tuple[str, str], Span] = {}
    deadline = time.monotonic() + 30
    while SPANS - found.keys() and time.monotonic() < deadline:
        time.sleep(0.5)
        cached.ask_decode(turn("hello"), {})  # an idle engine does not look at what its workers report
        found = {
            (span.name, attributes(span)[DIRECTION]): span
            for resource in list(engines.collector.spans)
            for scope in resource.scope_spans
            for span in scope.spans
            if span.name.startswith("kvdiag.") and span.trace_id.hex() == TRACE
        }
    assert found.keys() >= SPANS
    assert {span.parent_span_id.hex() for span in found.values()} == {PARENT}
    assert all(span.end_time_unix_nano > span.start_time_unix_nano for span in found.values())


def test_a_full_disk_costs_events_and_nothing_else(cached: Pair) -> None:
    cached.first_turn(turn(f"{next(_unique)}: {HISTORY[0]}"))
    deadline = time.monotonic() + 15
    while not (lost := metric(cached.decode, "kvdiag_dropped_events_total", sink="jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert lost > 0


def waiting_reads(port: int) -> float:
    return metric(port, "vllm:num_requests_waiting_by_reason", reason="deferred")


@contextlib.contextmanager
def asked_while_frozen(service: Service, reader: int, ask: Callable[[], Answer]) -> Iterator[Future[Answer]]:
    """Freeze an engine and ask for something that reads from it; inside, the read is in flight."""
    service.freeze()
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask)
            deadline = time.monotonic() + 30
            while not waiting_reads(reader) and not answer.done():
                assert time.monotonic() < deadline, "the read was never started"
                time.sleep(0.05)
            yield answer
    finally:
        service.thaw()


def test_a_read_that_stalls_is_given_up_and_computed(cached: Pair, engines: Engines) -> None:
    messages, handle = conversation(cached)
    handle["kvdiag"].pop("prefix")  # or the salt, which hides prefill's cache, would count as another prefix
    salt = f"salt-{next(_unique)}"
    with asked_while_frozen(
        engines.stack.decodes[0], cached.prefill, lambda: cached.ask_prefill(messages, handle, cache_salt=salt)
    ) as asked:
        answer = asked.result()
    assert outcome(answer) == ("transfer_failed", "stalled")
    assert cached.text_from(answer, messages) == cached.honest_text(messages)
    lost = {"cause": "transfer_failed", "detail": "stalled"}
    assert metric(cached.prefill, "kvdiag_lost_tokens_total", **lost) > 0


def test_a_hand_off_that_stalls_is_given_up_and_computed(cached: Pair, engines: Engines) -> None:
    messages = turn(f"{next(_unique)}: {HISTORY[0]}")
    prefilled = handle_of(cached.ask_prefill(messages))
    with asked_while_frozen(
        engines.stack.prefills[0], cached.decode, lambda: cached.ask_decode(messages, prefilled)
    ) as asked:
        answer = asked.result()
    assert (answer.status, answer.text) == (200, cached.honest_text(messages))


def test_a_decode_that_died_costs_no_turn(uncached: Pair, engines: Engines) -> None:
    """Last: it ends the second pair's decode. Reads are computed, in flight or not, until it is known to be out of reach.

    This prefill leaves vLLM's policy, which is to fail, as it is.
    """
    in_flight, *held = [conversation(uncached) for _ in range(4)]
    decode = engines.stack.decodes[0]
    with asked_while_frozen(decode, uncached.prefill, lambda: uncached.ask_prefill(*in_flight)) as asked:
        decode.kill()
        answers = [asked.result()]
    answers += [uncached.ask_prefill(*later) for later in held]
    causes = [outcome(answer)[0] for answer in answers]
    assert set(causes) <= {"transfer_failed", "peer_unreachable"}
    assert causes[-1] == "peer_unreachable"
