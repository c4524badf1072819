"""Time lines in causal order, whatever the clocks say."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvdiag.diagnosis.assemble import assemble
from kvdiag.diagnosis.casebook import Casebook, Wanted
from kvdiag.diagnosis.options import Options
from kvdiag.diagnosis.pipeline import read
from kvdiag.diagnosis.timeline import Timeline, explain
from kvdiag.errors import InputError
from kvdiag.events import TurnRecord

PREFILL = """\
(EngineCore pid=1) INFO 11-29 08:00:00 [factory.py:64] Creating v1 connector with name: NixlPullConnector and engine_id: p1
(EngineCore pid=1) WARNING 11-29 08:00:05 [pull_worker.py:161] Declining expired remote read for chatcmpl-two-0b1dc90a from engine d1.
(EngineCore pid=1) WARNING 11-29 08:00:05 [base_worker.py:3253] Skipping KV post-processing for failed request chatcmpl-two-0b1dc90a
(EngineCore pid=1) ERROR 11-29 08:00:05 [scheduler.py:3764] Failing 1 request(s) due to KV load failure (failure_policy=fail, 92 tokens affected). Request IDs: {'chatcmpl-two-0b1dc90a'}
"""
# Its clock is an hour ahead of prefill's and the router's.
DECODE = """\
(EngineCore pid=2) WARNING 11-29 09:00:01 [base_worker.py:3370] Releasing expired KV blocks for request chatcmpl-one-b90a83b0 which were retrieved by 0 remote worker(s) before lease expired.
"""
ROUTER = """\
2026-11-29 08:00:00 [INFO] disagg_proxy: [one] conv=agent-12: cache MISS
2026-11-29 08:00:00 [INFO] disagg_proxy: [one] Prefill done in 320ms
2026-11-29 08:00:01 [INFO] disagg_proxy: conv=agent-12: cached D blocks (remote_request_id=chatcmpl-one-b90a83b0, blocks=165)
2026-11-29 08:00:05 [INFO] disagg_proxy: conv=agent-12: cache HIT (age=4.0s)
2026-11-29 08:00:05 [INFO] disagg_proxy: [two] conv=agent-12: sending D's cached blocks to P (remote_request_id=chatcmpl-one-b90a83b0)
2026-11-29 08:00:09 [INFO] disagg_proxy: [other] conv=agent-13: cache MISS
"""


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for name, text in (("prefill.log", PREFILL), ("decode.log", DECODE), ("router.log", ROUTER)):
        (tmp_path / name).write_text(text)
    return tmp_path


def explained(name: str, logs: Path) -> Timeline:
    book, options = Casebook(), Options(turns=True)
    read(book, [str(logs)], options)
    return explain(name, book, assemble(book, options))


def told(timeline: Timeline) -> list[list[tuple[str | None, str]]]:
    return [[(Path(m.evidence.path).stem, m.what) for m in passage.moments] for passage in timeline.passages]


def test_a_conversation_is_told_in_causal_order(logs: Path) -> None:
    assert told(explained("agent-12", logs)) == [
        [
            ("router", "looked its handle up: first_turn"),
            ("router", "was prefilled"),
            ("router", "left a handle with the router"),
            ("decode", "had its blocks released"),
        ],
        [
            ("decode", "the turn before had its blocks released"),
            ("router", "looked its handle up: hit"),
            ("prefill", "had its read declined: the blocks had expired"),
            ("prefill", "was given up by the connector"),
            ("prefill", "was failed by the scheduler: its KV could not be loaded"),
        ],
    ]


def test_each_turn_comes_with_its_cause(logs: Path) -> None:
    causes = [(passage.turn.turn, passage.turn.cause) for passage in explained("agent-12", logs).passages]
    assert causes == [(1, "first_turn"), (2, "expired_remote_read")]


@pytest.mark.parametrize("name", ["two", "chatcmpl-two", "chatcmpl-two-0b1dc90a"])
def test_a_request_is_found_by_each_of_its_spellings(logs: Path, name: str) -> None:
    assert [passage.turn.request_id for passage in explained(name, logs).passages] == ["two"]


def test_the_beginning_of_a_name_is_enough_where_it_is_unique(logs: Path) -> None:
    assert len(explained("agent-13", logs).passages) == 1
    for beginning in ("agent-1", "agent", "a"):
        with pytest.raises(InputError, match=r"beginning of 2 names \(agent-12, agent-13\)"):
            explained(beginning, logs)


@pytest.mark.parametrize("name", ["agent-1x", "", "nobody at all"])
def test_an_unknown_name_is_answered_with_known_ones(logs: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"known are .*agent-1[23]"):
        explained(name, logs)


def test_without_turns_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text(PREFILL.splitlines()[0])
    with pytest.raises(InputError, match="no turn was recognised"):
        explained("x", tmp_path)


def test_events_are_told_with_their_figures(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(
        '{"schema":"kvdiag.kv/1","ts":"2026-11-29T08:00:00.000Z","request_id":"chatcmpl-one-b90a83b0","role":"prefill",'
        '"engine_id":"p","kind":"transfer","direction":"decode_to_prefill","bytes":2048,"seconds":0.25}\n'
        '{"schema":"kvdiag.kv/1","ts":"2026-11-29T08:00:00.000Z","request_id":"chatcmpl-one-b90a83b0","role":"decode",'
        '"engine_id":"d","kind":"transfer","direction":"prefill_to_decode","bytes":512,"seconds":0.5}\n'
    )
    [moments] = told(explained("one", tmp_path))
    assert [what for _, what in moments] == [
        "moved KV (direction decode_to_prefill, bytes 2048, seconds 0.25)",
        "moved KV (direction prefill_to_decode, bytes 512, seconds 0.5)",
    ]


@pytest.mark.parametrize(
    ("moved", "what"),
    [(True, "read back only the part that agrees with what decode holds"), (False, "had its read declined")],
)
def test_a_read_in_part_is_not_called_declined(tmp_path: Path, what: str, *, moved: bool) -> None:
    head = '{"schema":"kvdiag.kv/1","ts":"2026-11-29T08:00:00.000Z","request_id":"chatcmpl-one-b90a83b0","role":"prefill","engine_id":"p",'
    decline = head + '"kind":"decline","cause":"prefix_diverged","detail":"in_response"}\n'
    transfer = head + '"kind":"transfer","direction":"decode_to_prefill"}\n'
    (tmp_path / "events.jsonl").write_text(decline + transfer * moved)

    [moments] = told(explained("one", tmp_path))

    assert moments[0][1].partition(" (")[0] == what


def test_what_prefill_keeps_for_decode_comes_before_decode_reads_it(tmp_path: Path) -> None:
    def event(role: str, kind: str, direction: str) -> str:
        return (
            '{"schema":"kvdiag.kv/1","ts":"2026-11-29T08:00:00.000Z","request_id":"chatcmpl-one-b90a83b0",'
            f'"role":"{role}","engine_id":"{role}","kind":"{kind}","direction":"{direction}"}}\n'
        )

    (tmp_path / "a-decode.jsonl").write_text(
        event("decode", "match", "prefill_to_decode")
        + event("decode", "transfer", "prefill_to_decode")
        + event("decode", "retain", "decode_to_prefill")
    )
    (tmp_path / "b-prefill.jsonl").write_text(
        event("prefill", "match", "decode_to_prefill")
        + event("prefill", "retain", "prefill_to_decode")
        + event("prefill", "release", "prefill_to_decode")
    )
    [moments] = told(explained("one", tmp_path))
    assert [(log, what.partition(" (")[0]) for log, what in moments] == [
        ("b-prefill", "was matched"),
        ("b-prefill", "had its blocks kept for decode"),
        ("a-decode", "was matched"),
        ("a-decode", "moved KV"),
        ("b-prefill", "had its blocks released"),
        ("a-decode", "had its blocks kept for the next turn"),
    ]


@pytest.mark.parametrize("name", ["r7", "conv-of-7", "chatcmpl-r7-0123abcd"])
def test_a_turn_of_long_ago_is_found_by_name_in_a_long_log(tmp_path: Path, name: str) -> None:
    records = [
        TurnRecord(
            ts="2026-11-29T20:00:05Z",
            request_id=f"r{n}",
            conversation=f"conv-of-{n}",
            turn=1,
            status=200,
            cause="first_turn",
        )
        for n in range(500)
    ]
    (tmp_path / "turns.jsonl").write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    book = Casebook(wanted=Wanted(name), most_turns=50)
    read(book, [str(tmp_path)], Options(turns=True))
    report = assemble(book, Options(turns=True))
    assert [passage.turn.request_id for passage in explain(name, book, report).passages] == ["r7"]
    # Ten other names begin alike, so that they are kept as well.
    assert (report.turns.total, report.without_row) == (500, 500 - 50 - 11)
