"""Each rule has three states: fired, clear, and not evaluated where its input is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.diagnosis.vllm_lines import BUSY, DECODE, PREFILL

from kvdiag.causes import CAUSES, OUTCOMES
from kvdiag.diagnosis import Options, classify
from kvdiag.diagnosis.rules import RULES, Rule

if TYPE_CHECKING:
    from pathlib import Path

    from kvdiag.diagnosis.report import Report, Verdict

P = "(EngineCore pid=2) {level} 10-14 09:{at} [f.py:1] {text}"
MOVED = (
    "(APIServer pid=1) INFO 10-14 09:00:10 [f.py:1] KV Transfer metrics: Num successful transfers=1, Avg xfer time (ms)={ms}, "
    "Avg MB per transfer=100.0, Num failed transfers={failed}, Num KV expired reqs={expired}, Num notifs after expiry={late}"
)
PROXY = "2026-10-14 09:00:00 [INFO] disagg_proxy: {}"
_QUEUE = [BUSY.format(at=at, waiting=30, usage=20) for at in (10, 20, 30)]
_FULL = [BUSY.format(at=at, waiting=30, usage=99) for at in (10, 20, 30)]
_RELEASED = "Releasing expired KV blocks for request chatcmpl-a-0000000a which were retrieved by 0 remote worker(s) before lease expired."
_STALLED = "No available shared memory broadcast block found in 60 seconds. This typically happens when some processes are hanging"


def _line(text: str, level: str = "WARNING", at: str = "00:01") -> str:
    return P.format(text=text, level=level, at=at)


def _report(folder: Path, **files: list[str]) -> Report:
    paths = []
    for name, lines in files.items():
        path = folder / f"{name}.log"
        path.write_text("\n".join(lines) + "\n")
        paths.append(str(path))
    return classify(paths, Options(turns=True))


def _moved(ms: float = 20, failed: int = 0, expired: int = 0, late: int = 0) -> str:
    return MOVED.format(ms=ms, failed=failed, expired=expired, late=late)


@pytest.mark.parametrize(
    ("files", "cause", "detail", "confidence", "turns"),
    [
        ({"p": [PREFILL, _line("Declining expired remote read for chatcmpl-a-0000000a from engine d.")]}, "expired_remote_read", "declined", "certain", 1),
        ({"p": [PREFILL, _line(_RELEASED)]}, "expired_handoff", None, "certain", 1),
        ({"p": [PREFILL, _moved(expired=2)]}, "expired_remote_read", None, "possible", 2),
        ({"d": [DECODE, _moved(late=3)]}, "suspect_kv", "read_after_release", "likely", 3),
        ({"d": [DECODE, _moved(failed=3)]}, "transfer_failed", None, "likely", 3),
        ({"d": [DECODE, _moved(ms=900), _moved(ms=900)]}, "slow_transfer", "prefill_to_decode", "likely", 2),
        ({"p": [PREFILL, _moved(ms=900)]}, "slow_transfer", "decode_to_prefill", "likely", 1),
        ({"p": [PREFILL, _line("NIXL handshake: add agent took: 9.5 (x)", "DEBUG")]}, "slow_transfer", "handshake", "likely", 1),
        ({"p": [PREFILL, *_QUEUE]}, "queueing", "prefill", "likely", 30),
        ({"d": [DECODE, *_QUEUE]}, "queueing", "decode", "likely", 30),
        ({"d": [DECODE, *_FULL]}, "kv_pressure", "capacity", "likely", 30),
        ({"p": [_line("Got kv_transfer_params, but no KVConnector found. x")] * 3}, "feature_off", "no_connector", "certain", 3),
        ({"p": [PREFILL, BUSY.format(at=10, waiting=0, usage=9)], "d": [DECODE.replace("True", "False")]}, "feature_off", "decode", "likely", 0),
        ({"p": [PREFILL, _line("Got invalid KVTransferParams: {'a': 1}. This request will not utilize KVTransfer")]}, "missing_metadata", "incomplete", "certain", 1),
        ({"d": [DECODE, _line("Request chatcmpl-a aborted.", "INFO")]}, "client", "aborted", "certain", 1),
        ({"d": [DECODE, _line("Request chatcmpl-a failed (engine dead).", "ERROR")]}, "upstream_error", None, "certain", 1),
        ({"d": [DECODE, _line("EngineCore encountered a fatal error.", "ERROR")]}, "upstream_error", None, "certain", 0),
        ({"r": ['INFO:     1.2.3.4:5 - "POST /v1/chat/completions HTTP/1.1" 503 Service Unavailable'] * 2}, "upstream_error", None, "likely", 2),
        ({"r": [PROXY.format("[a] conv=c: cache MISS"), PROXY.replace("00:00", "00:09").format("[a] Prefill done in 900ms")]}, "router_overhead", None, "likely", 1),
        ({"p": [PREFILL, _line(_RELEASED)], "d": [DECODE, BUSY.format(at=10, waiting=0, usage=9), _line(_STALLED, "INFO")]}, "upstream_error", None, "likely", 1),
        ({"p": [PREFILL, _line("Remote engine at 1.2.3.4:5 changed from d to d2.", "INFO")]}, "peer_unreachable", "restarted", "possible", 0),
    ],
)  # fmt: skip
def test_a_rule_fires(
    files: dict[str, list[str]], cause: str, detail: str | None, confidence: str, turns: int, tmp_path: Path
) -> None:
    first = _report(tmp_path, **files).findings[0]

    assert (first.cause, first.detail, first.confidence, first.turns) == (cause, detail, confidence, turns)
    assert first.evidence
    assert first.next_step


@pytest.mark.parametrize(("on", "cause"), [("True", "missing_metadata"), ("False", "feature_off")])
def test_a_handle_that_never_came_back_is_blamed_on_a_decode_that_gives_none(
    on: str, cause: str, tmp_path: Path
) -> None:
    record = (
        '{"schema":"kvdiag.turn/1","ts":"2026-10-14T09:00:00.000Z","request_id":"a","conversation":"c","turn":2,"status":200,'
        '"cause":"missing_metadata","detail":"not_returned"}'
    )
    event = '{"schema":"kvdiag.kv/1","ts":"2026-10-14T09:00:01.000Z","request_id":"a","role":"decode","engine_id":"x","kind":"match"}'
    report = _report(tmp_path, p=[PREFILL], d=[DECODE.replace("True", on)], r=[record], events=[event])

    assert [(finding.cause, finding.turns) for finding in report.findings] == [(cause, 1)]
    assert (report.findings[0].evidence[0].path.endswith("d.log")) == (cause == "feature_off")


@pytest.mark.parametrize(
    ("on", "status", "cause"),
    [("True", 200, "upstream_error"), ("False", 200, "feature_off"), ("False", 502, "upstream_error")],
)
def test_a_call_given_up_for_its_handle_is_blamed_on_a_prefill_that_reads_none(
    on: str, status: int, cause: str, tmp_path: Path
) -> None:
    record = (
        '{"schema":"kvdiag.turn/1","ts":"2026-10-14T09:00:00.000Z","request_id":"a","conversation":"c","turn":2,"lookup":"hit",'
        f'"retries":1,"status":{status},"cause":"upstream_error"}}'
    )
    report = _report(tmp_path, p=[PREFILL.replace("True", on)], d=[DECODE], r=[record])

    assert report.per_turn is not None
    assert [turn.cause for turn in report.per_turn] == [cause]


@pytest.mark.parametrize(("status", "cause", "failures"), [(502, "upstream_error", 3), (200, "first_turn", 2)])
def test_what_a_router_tries_again_is_one_turn(tmp_path: Path, status: int, cause: str, failures: int) -> None:
    failure = (
        "NIXL transfer failure: handshake_failed | Context: {'failure_type': 'handshake_failed', 'request_id': '%s', "
        "'remote_engine_id': 'p', 'remote_request_id': 'chatcmpl-a-%s', 'num_local_blocks': %d, 'num_remote_blocks': 5}"
    )
    decode = [DECODE]
    for attempt in range(failures):
        read = failure % (f"chatcmpl-a-0000000{attempt}", f"0000001{attempt}", 5)
        freed = failure % (f"af4881365739{attempt:04d}", f"0000001{attempt}", 0)
        answer = 'INFO:     192.0.2.1:9 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error'
        decode += [_line(read, "ERROR"), answer, _line(freed, "ERROR")]
    record = (
        '{"schema":"kvdiag.turn/1","ts":"2026-10-14T09:00:00.000Z","request_id":"a","conversation":"c","turn":1,"lookup":"first_turn",'
        f'"retries":2,"status":{status},"cause":"{cause}"}}'
    )
    report = _report(tmp_path, d=decode, r=[record])

    assert [(finding.cause, finding.turns) for finding in report.findings] == [("peer_unreachable", 1)]
    assert report.turns.total == 1


@pytest.mark.parametrize(
    ("detail", "causes"), [("stalled", ["transfer_failed"]), ("", ["suspect_kv", "transfer_failed"])]
)
def test_a_late_read_that_had_been_given_up_is_no_suspect_answer(
    detail: str, causes: list[str], tmp_path: Path
) -> None:
    event = (
        '{"schema":"kvdiag.kv/1","ts":"2026-10-14T09:00:01.000Z","request_id":"chatcmpl-%s","role":"%s","engine_id":"x","kind":"failure",'
        '"cause":"%s","detail":"%s","remote_request_id":"chatcmpl-%s"}'
    )
    events = [
        event % ("b-0000000b", "prefill", "transfer_failed", detail, "a-0000000a"),
        event % ("a-0000000a", "decode", "suspect_kv", "read_after_release", "b-0000000c"),
    ]
    late = (
        "Potentially invalid KV blocks for unrecognized request chatcmpl-a-0000000a were retrieved by a decode worker."
    )
    report = _report(tmp_path, p=[PREFILL], d=[DECODE, _line(late, "ERROR"), _moved(late=1)], events=events)

    assert [finding.cause for finding in report.findings] == causes


@pytest.mark.parametrize(
    "files",
    [
        {"p": [PREFILL, _moved(), BUSY.format(at=10, waiting=0, usage=99)], "d": [DECODE, _moved(), _line(_RELEASED)]},
        {"d": [DECODE, _moved(expired=40)]},
        {"p": [PREFILL, _moved(), _line(_STALLED, "INFO")]},
        {"d": [DECODE, _line(_STALLED, "INFO"), _moved()]},
        {"d": [DECODE, _moved(), BUSY.format(at=10, waiting=90, usage=20)]},
        {"p": [PREFILL, _moved(), _line("NIXL handshake: add agent took: 0.2 (x)", "DEBUG")]},
        {
            "r": [
                PROXY.format("[a] conv=c: cache MISS"),
                'INFO:     1.2.3.4:5 - "GET /v1/models HTTP/1.1" 404 Not Found',
            ]
        },
    ],
)
def test_what_is_normal_stays_quiet(files: dict[str, list[str]], tmp_path: Path) -> None:
    report = _report(tmp_path, **files)

    assert (report.verdict.cause, report.findings) == ("healthy", [])


_IDLE = (
    "(APIServer pid=1) INFO 10-14 09:00:{at} [f.py:1] Engine 000: Avg prompt throughput: {prompt} tokens/s, Avg generation "
    "throughput: {generation} tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 9%, Prefix cache hit rate: {prefix}%, "
    "External prefix cache hit rate: {external}%"
)


def _busy(prompt: float, generation: float, prefix: float, external: float) -> list[str]:
    return [
        _IDLE.format(at=at, prompt=prompt, generation=generation, prefix=prefix, external=external)
        for at in (10, 20, 30, 40)
    ]


def test_a_decode_that_computes_prompts_was_handed_nothing(tmp_path: Path) -> None:
    report = _report(tmp_path, p=[PREFILL, *_busy(640, 0.3, 0, 0)], d=[DECODE, *_busy(655, 40, 0, 0)])

    assert (report.verdict.cause, report.verdict.confidence) == ("missing_metadata", "likely")


@pytest.mark.parametrize(
    ("prefix", "external", "cause"), [(3, 0.0, "missing_metadata"), (90, 0.0, "healthy"), (3, 40.0, "healthy")]
)
def test_handles_that_were_sent_but_never_read(prefix: float, external: float, cause: str, tmp_path: Path) -> None:
    proxy = []
    for turn in "abc":
        proxy += [
            PROXY.format(f"[{turn}1] conv={turn}: cache MISS"),
            PROXY.format(f"conv={turn}: cached D blocks (remote_request_id=chatcmpl-{turn}1-0000000a, blocks=9)"),
            PROXY.format(
                f"[{turn}2] conv={turn}: sending D's cached blocks to P (remote_request_id=chatcmpl-{turn}1-0000000a)"
            ),
        ]

    report = _report(tmp_path, p=[PREFILL, *_busy(640, 0.3, prefix, external)], d=[DECODE, _moved()], r=proxy)

    assert report.verdict.cause == cause


def test_a_rule_without_its_input_is_not_called_clear(tmp_path: Path) -> None:
    report = _report(tmp_path, d=[DECODE, _moved(), BUSY.format(at=10, waiting=0, usage=9)])

    missing = {item.rule: item.needs for item in report.not_evaluated}
    assert {"expired_remote_read", "handle_kept", "prefix_unchanged"} <= missing.keys()
    assert "read_after_release" not in missing
    assert all(missing.values())


def test_nothing_recognised_is_inconclusive_whatever_it_is(tmp_path: Path) -> None:
    report = _report(tmp_path, a=["hello", "world"])

    assert report.verdict.cause == "inconclusive"
    assert len(report.not_evaluated) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_names_causes_that_exist_and_what_it_needs(rule: Rule) -> None:
    assert set(rule.causes) <= set(CAUSES) - OUTCOMES
    assert rule.needs


def test_every_fault_has_a_rule() -> None:
    judged = {cause for rule in RULES for cause in rule.causes}

    unjudged = set(CAUSES) - OUTCOMES - judged
    assert unjudged == {"unexplained"}, f"RULES of src/kvdiag/diagnosis/rules.py find none of {sorted(unjudged)}"


def test_lost_seconds_are_measured_against_this_logs_own_hits(tmp_path: Path) -> None:
    lines = []
    for conversation in ("a", "b", "c"):
        lines += [
            PROXY.format(f"[{conversation}1] conv={conversation}: cache MISS"),
            PROXY.format(f"conv={conversation}: cached D blocks (remote_request_id=chatcmpl-{conversation}1-0000000a, blocks=90)"),
            PROXY.format(f"[{conversation}2] conv={conversation}: sending D's cached blocks to P (remote_request_id=chatcmpl-{conversation}1-0000000a)"),
            PROXY.format(f"[{conversation}2] Prefill done in 200ms"),
            PROXY.format(f"conv={conversation}: cached D blocks (remote_request_id=chatcmpl-{conversation}2-0000000a, blocks=100)"),
        ]  # fmt: skip
    lines += [
        PROXY.format("conv=a: stale cache entry (age=463.0s > ttl=450.0s), discarding"),
        PROXY.format("[a3] conv=a: cache MISS"),
        PROXY.format("[a3] Prefill done in 1400ms"),
    ]

    report = _report(tmp_path, proxy=lines)

    (finding,) = report.findings
    assert (finding.cause, finding.detail, finding.lost_seconds) == ("missing_metadata", "stale", 1.2)
    assert (report.turns.total, report.turns.first) == (7, 3)


def test_a_given_limit_marks_slow_turns(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    record = '{"schema":"kvdiag.turn/1","ts":"2026-11-20T09:00:00.000Z","request_id":"%s","conversation":"c","turn":%d,"status":200,"ttft_s":%s,"prefill_s":0.2,"cause":"remote_hit"}'
    path.write_text("\n".join([record % ("a", 2, 0.3), record % ("b", 3, 0.9)]) + "\n")

    quick = classify([str(path)])
    strict = classify([str(path)], Options(slow_s=0.8))

    assert (quick.turns.slow, quick.verdict.cause) == (0, "healthy")
    assert (strict.turns.slow, strict.verdict.cause, strict.verdict.confidence) == (1, "unexplained", "possible")


def test_a_forced_role_overrides_what_the_content_suggests(tmp_path: Path) -> None:
    log = tmp_path / "node7.log"
    log.write_text(_line(_RELEASED) + "\n")

    as_prefill = classify([str(log)], Options(roles=(("prefill", "node*"),)))
    as_decode = classify([str(log)], Options(roles=(("decode", "node*"),)))

    assert [finding.cause for finding in as_prefill.findings] == ["expired_handoff"]
    assert as_decode.findings == []


_SCRAPE = """\
vllm:num_requests_running{{engine="0"}} 60.0
vllm:num_requests_waiting{{engine="0"}} {waiting}
vllm:kv_cache_usage_perc{{engine="0"}} {usage}
vllm:request_success_total{{engine="0"}} {requests}
vllm:generation_tokens_total{{engine="0"}} 90000.0
"""


@pytest.mark.parametrize(
    ("scrapes", "cause"),
    [
        ([(8, 0.993), (9, 0.991)], "kv_pressure"),
        ([(8, 0.993), (2, 0.991)], "healthy"),
        ([(8, 0.90), (9, 0.991)], "healthy"),
        ([(9, 0.991)], "healthy"),
        ([(30, 0.991)], "kv_pressure"),
    ],
)
def test_a_short_queue_at_a_full_cache_counts_where_two_scrapes_show_it(
    tmp_path: Path, scrapes: list[tuple[int, float]], cause: str
) -> None:
    report = _report(
        tmp_path,
        **{
            f"decode-{number}": [_SCRAPE.format(waiting=waiting, usage=usage, requests=100 + number)]
            for number, (waiting, usage) in enumerate(scrapes)
        },
    )

    assert report.verdict.cause == cause


_BARE = _line(
    "Failing 1 request(s) due to KV load failure (failure_policy=fail, 9 tokens affected). Request IDs: {'chatcmpl-a-0000000a'}",
    level="ERROR",
    at="00:06",
)
_SKIPPED = _line("Skipping KV post-processing for failed request chatcmpl-a-0000000a", at="00:06")


@pytest.mark.parametrize(
    ("config", "lines", "cause", "confidence"),
    [
        (PREFILL, [_BARE, _moved(expired=1)], "expired_remote_read", "likely"),
        (PREFILL, [_BARE, _moved(failed=1)], "transfer_failed", "likely"),
        (PREFILL, [_BARE, _moved(failed=1, expired=1)], "transfer_failed", "possible"),  # either of the two
        (PREFILL, [_BARE, _moved()], "expired_remote_read", "possible"),
        (PREFILL, [_BARE], "expired_remote_read", "possible"),
        (PREFILL, [_SKIPPED, _BARE], "transfer_failed", "possible"),
        (DECODE, [_BARE, _moved(expired=1)], "transfer_failed", "possible"),
        (DECODE, [_BARE, _moved(failed=1)], "transfer_failed", "likely"),
    ],
)
def test_a_failed_load_without_a_reason_is_judged_by_the_counters_beside_it(
    tmp_path: Path, config: str, lines: list[str], cause: str, confidence: str
) -> None:
    first, *others = _report(tmp_path, engine=[config, *lines]).findings

    assert (first.cause, first.confidence, first.turns) == (cause, confidence, 1)
    assert {item.confidence for item in others} <= {"possible"}


def _hits(*milliseconds: int) -> list[str]:
    """Return a router's log of one conversation, each turn of which was read back and took so long on prefill."""
    lines = ["[t0] conv=a: cache MISS", "[t0] Prefill done in 260ms"]
    for number, taken in enumerate(milliseconds):
        held = f"remote_request_id=chatcmpl-t{number}-0000000a"
        lines += [
            f"conv=a: cached D blocks ({held}, blocks={200 + number})",
            "conv=a: cache HIT (age=9.0s)",
            f"[t{number + 1}] conv=a: sending D's cached blocks to P ({held})",
            f"[t{number + 1}] Prefill done in {taken}ms",
        ]
    last = len(milliseconds)
    lines.append(f"conv=a: cached D blocks (remote_request_id=chatcmpl-t{last}-0000000a, blocks={200 + last})")
    return [PROXY.format(line) for line in lines]


@pytest.mark.parametrize(
    ("others", "taken", "slow", "found"),
    [
        ({}, 7800, 1, [("unexplained", "possible", 1)]),
        ({}, 1900, 0, []),
        ({}, 160, 0, []),
        ({"prefill": [PREFILL, *_QUEUE]}, 7800, 1, [("queueing", "likely", 30)]),
    ],
)
def test_a_hit_far_slower_than_others_is_never_passed_over(
    tmp_path: Path, others: dict[str, list[str]], taken: int, slow: int, found: list[tuple[str, str, int]]
) -> None:
    report = _report(tmp_path, proxy=_hits(*[150] * 7, taken, *[150] * 3), **others)

    assert [(finding.cause, finding.confidence, finding.turns) for finding in report.findings] == found
    assert report.turns.slow == slow
    assert sum(row.slow for row in report.per_turn or []) == slow


_READ = "(EngineCore pid=1) INFO 10-14 09:00:10 [metrics.py:101] KV Transfer metrics: Num successful transfers=11, Avg xfer time (ms)=1.5, P90 xfer time (ms)=2.1, Avg post time (ms)=1.0, P90 post time (ms)=1.1, Avg MB per transfer=1.5, Throughput (MB/s)=900.0, Avg number of descriptors=24.0"


@pytest.mark.parametrize(
    ("others", "reused", "row"),
    [({}, 0, ("unexplained", "possible")), ({"prefill": [PREFILL, _READ]}, 11, ("remote_hit", "likely"))],
)
@pytest.mark.parametrize("turns", [True, False])
def test_a_handle_that_was_sent_is_a_read_back_only_where_prefill_reads(
    tmp_path: Path, others: dict[str, list[str]], reused: int, row: tuple[str, str], *, turns: bool
) -> None:
    _report(tmp_path, proxy=_hits(*[150] * 11), **others)

    report = classify([str(tmp_path)], Options(turns=turns))

    assert (report.turns.total, report.turns.reused) == (12, reused)
    assert {(turn.cause, turn.confidence) for turn in report.per_turn or [] if turn.turn != 1} <= {row}


_FIVE = 'httpx: HTTP Request: POST http://198.51.100.21:8100/v1/chat/completions "HTTP/1.1 500 Internal Server Error"'


@pytest.mark.parametrize(("between", "blamed"), [([], {"t3": "upstream_error"}), (["[other] conv=b: cache MISS"], {})])
def test_an_error_is_the_turns_that_was_alone_under_way(
    tmp_path: Path, between: list[str], blamed: dict[str, str]
) -> None:
    sent = "[t3] conv=a: sending D's cached blocks to P (remote_request_id=chatcmpl-t2-0000000a)"
    failed = [PROXY.format(sent), *map(PROXY.format, between), PROXY.format(_FIVE).replace("disagg_proxy: ", "")]

    report = _report(tmp_path, proxy=[*_hits(150, 150), *failed])

    (finding,) = report.findings
    assert (finding.cause, finding.turns, report.turns.reused) == ("upstream_error", 1, 0)
    rows = {turn.request_id: turn.cause for turn in report.per_turn or []}
    assert {name: cause for name, cause in rows.items() if cause == "upstream_error"} == blamed


_START_FAILED = (
    "(EngineCore pid=5) ERROR 11-06 09:00:15 [core.py:1586] EngineCore failed to start.\n"
    "(EngineCore pid=5) ERROR 11-06 09:00:15 [core.py:1586] ValueError: No available memory for the cache blocks.\n"
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
)
_SERVES = "INFO:     Application startup complete.\n"
_LATER_ERROR = "(EngineCore pid=5) ERROR 11-06 09:01:15 [x.py:1] ValueError: a request's own fault\n"


def _verdict(tmp_path: Path, log: str) -> Verdict:
    (tmp_path / "prefill.log").write_text("(APIServer pid=1) INFO 11-06 09:00:00 [x.py:1]   version 0.33.0\n" + log)
    return classify([str(tmp_path)]).verdict


def test_an_engine_that_does_not_start_is_named_with_its_exception(tmp_path: Path) -> None:
    verdict = _verdict(tmp_path, _START_FAILED)
    assert (verdict.cause, verdict.confidence) == ("upstream_error", "certain")
    assert verdict.summary == "1 engine failed to start: ValueError: No available memory for the cache blocks."


@pytest.mark.parametrize("log", [_START_FAILED + _SERVES, _SERVES + _LATER_ERROR])
def test_a_start_that_succeeded_is_none_that_failed(tmp_path: Path, log: str) -> None:
    assert _verdict(tmp_path, log).cause == "inconclusive"
