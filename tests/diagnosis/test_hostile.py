"""Nothing that can stand in a file brings the reader down, stalls it, or reaches the terminal."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvdiag.diagnosis import Options, classify
from kvdiag.diagnosis.lines import parse_line
from kvdiag.diagnosis.patterns import PATTERNS
from kvdiag.diagnosis.scan import scan
from kvdiag.diagnosis.text import EVIDENCE_CHARS, neutralise
from kvdiag.errors import InputError

if TYPE_CHECKING:
    from kvdiag.diagnosis.report import Report

_SAMPLES = [pattern.sample for pattern in PATTERNS if pattern.sample]
_HEADERS = (
    "(EngineCore pid=5) WARNING 10-14 09:00:00 [f.py:1] ",
    "2026-10-14 09:00:00 [INFO] disagg_proxy: ",
    "INFO:     ",
    "",
    '{"log":"',
    "2026-10-14T09:00:00Z stdout P ",
    "pod-1 vllm ",
    "Dec 01 23:46:00 host vllm[8801]: ",
)
_NOISE = st.one_of(
    st.binary(max_size=80),
    st.sampled_from(_SAMPLES).map(str.encode),
    st.tuples(st.sampled_from(_HEADERS), st.sampled_from(_SAMPLES)).map(lambda pair: "".join(pair).encode()),
    st.tuples(st.sampled_from(_HEADERS), st.text(max_size=60)).map(
        lambda pair: "".join(pair).encode("utf-8", "replace")
    ),
)


def _diagnose(*contents: bytes) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.log" for number in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        return classify([str(path) for path in paths], Options(turns=True))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(_NOISE, max_size=20), min_size=1, max_size=3))
def test_any_mixture_of_lines_gives_a_report(files: list[list[bytes]]) -> None:
    # What begins like a compressed file is one; those have tests of their own.
    report = _diagnose(*(b"\n".join([b"", *lines]) for lines in files))

    assert report.verdict.summary
    assert all(item.recognised + item.skipped == item.lines for item in report.inputs)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=2000))
def test_any_bytes_can_be_scanned(content: bytes) -> None:
    found = scan(content)

    assert found.lines <= content.count(b"\n") + 1


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_any_text_can_be_taken_apart(text: str) -> None:
    assert parse_line(text).message is not None


@pytest.mark.parametrize("cut", range(0, 400, 7))
def test_a_sample_cut_anywhere_is_read_or_left_out(cut: int) -> None:
    lines = "\n".join((_HEADERS[0] + sample)[:cut] for sample in _SAMPLES)

    assert _diagnose(lines.encode()).verdict


def test_escapes_and_control_characters_never_reach_the_report() -> None:
    attack = "\x1b]0;owned\x07\x1b[2J\x07\x9b31m\u202e<script>"
    line = f"(EngineCore pid=5) WARNING 10-14 09:00:00 [f.py:1] Declining expired remote read for chatcmpl-a from engine e.{attack}"
    other = f"2026-10-14 09:00:00 [INFO] disagg_proxy: [{attack}] conv={attack}: cache MISS"

    report = _diagnose(f"{line}\n{other}\n".encode())

    shown = "".join(e.text for finding in report.findings for e in finding.evidence)
    assert not any(character in shown for character in "\x1b\x07\x9b\u202e\n")


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_neutral_text_is_short_and_printable(text: str) -> None:
    clean = neutralise(text)

    assert len(clean) <= EVIDENCE_CHARS
    assert "\x1b" not in clean
    assert not any(ord(character) < 32 and character != "\t" for character in clean)


@pytest.mark.parametrize(
    "line",
    [
        "(" * 20_000 + "pid=1",
        "(EngineCore pid=5) " * 5_000 + "INFO",
        "NIXL transfer failure: transfer_failed | Context: {" + "'request_id': '" * 5_000,
        "a" * 200_000 + " Declining expired remote read for x from engine y.",
        '{"log": "' + "\\n" * 50_000,
        "[" * 50_000 + "Caught signal 11",
        "(EngineCore pid=5) ERROR 10-14 09:00:00 [f.py:1] Aborted request(s) " + "x," * 100_000,
        "conv=" + ":" * 50_000 + ": cache HIT (age=1s)",
    ],
)
def test_a_line_made_to_stall_the_matcher_does_not(line: str) -> None:
    assert _diagnose(f"{line}\n".encode() * 3).verdict


def test_numbers_beyond_all_measure_do_no_harm() -> None:
    nine = "9" * 400
    lines = [
        (
            f"(EngineCore pid={nine}) INFO 10-14 09:00:00 [f.py:1] Bidirectional KV transfer is enabled and the kv recompute "
            f"threshold is set to {nine} tokens.KV blocks on D are released after a TTL of {nine} seconds."
        ),
        (
            f"(EngineCore pid=5) ERROR 10-14 09:00:00 [f.py:1] Failing {nine} request(s) due to KV load failure "
            f"(failure_policy=fail, {nine} tokens affected). Request IDs: {{'chatcmpl-a'}}"
        ),
        (
            f"(APIServer pid=5) INFO 10-14 09:00:00 [f.py:1] KV Transfer metrics: Num successful transfers={nine}, "
            f"Avg xfer time (ms)=nan, Num failed transfers=1e999, Num KV expired reqs=-5"
        ),
        (
            f"(APIServer pid=5) INFO 10-14 09:00:00 [f.py:1] Engine 000: Avg prompt throughput: {nine}.0 tokens/s, Avg generation "
            f"throughput: 1.0.0 tokens/s, Running: {nine} reqs, Waiting: {nine} reqs, GPU KV cache usage: {nine}%"
        ),
        f"2026-10-14 09:00:00 [INFO] disagg_proxy: [x] Prefill done in {nine}ms",
        f'{{"schema": "kvdiag.turn/1", "ts": "{nine}", "request_id": "a", "turn": {nine}, "status": -1, "prefill_s": 1e400}}',
        f"vllm:num_preemptions_total {nine}",
        "vllm:kv_cache_usage_perc NaN",
        "2026-99-99 99:99:99 [INFO] disagg_proxy: [x] conv=a: cache MISS",
        f"(EngineCore pid=5) INFO 99-99 99:99:99 [f.py:1] NIXL handshake: add agent took: {nine}.1 (x)",
    ]

    report = _diagnose("\n".join(lines * 4).encode())

    assert json.dumps(report.turns.total)


def test_random_bytes_are_called_binary_and_nothing_else() -> None:
    report = _diagnose(random.Random(7).randbytes(200_000))

    assert report.verdict.cause == "inconclusive"
    assert report.inputs[0].kind == "binary"


def test_no_readable_input_is_one_line_that_names_it(tmp_path: Path) -> None:
    missing = tmp_path / "absent.log"

    with pytest.raises(InputError, match=r"absent\.log: no such file"):
        classify([str(missing)])


def test_unreadable_inputs_among_good_ones_are_named_in_the_report(tmp_path: Path) -> None:
    good = tmp_path / "good.log"
    good.write_text("INFO:     Application startup complete.\n")

    report = classify([str(good), str(tmp_path / "absent.log")])

    assert {item.path.rpartition("/")[2]: item.kind for item in report.inputs} == {
        "good.log": "access",
        "absent.log": "unreadable",
    }
