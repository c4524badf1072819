from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.router import sse
from kvdiag.router.sse import EventFilter

HANDLE = b'{"remote_engine_id":"e","remote_block_ids":[[1,2]]}'
LAST = b'data: {"a":1,"kv_transfer_params":%b,"b":2}\n\n' % HANDLE
STREAM = b'data: {"x":"1"}\n\n: comment\n\ndata: {"x":"2"}\n\n' + LAST + b"data: [DONE]\n\n"
CLEAN = STREAM.replace(b'"kv_transfer_params":%b,' % HANDLE, b"")


def through(data: bytes, cuts: list[int]) -> tuple[bytes, bytes | None]:
    events = EventFilter()
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    out = b"".join(events.feed(data[a:b]) for a, b in itertools.pairwise(edges))
    return out + events.close(), events.handle


@given(cuts=st.lists(st.integers(min_value=0, max_value=10_000), max_size=12))
def test_the_handle_is_taken_out_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    assert through(STREAM, cuts) == (CLEAN, HANDLE)


@given(cuts=st.lists(st.integers(min_value=0, max_value=10_000), max_size=12))
def test_crlf_streams_keep_their_line_endings(cuts: list[int]) -> None:
    out, handle = through(STREAM.replace(b"\n", b"\r\n"), cuts)
    assert out == CLEAN.replace(b"\n", b"\r\n")
    assert handle == HANDLE


@given(text=st.text(max_size=50))
def test_text_that_looks_like_a_handle_is_left_alone(text: str) -> None:
    event = b"data: " + json.dumps({"delta": text + '"kv_transfer_params":{"a":1}' + text}).encode() + b"\n\n"
    assert through(event, [7, 20]) == (event, None)


@given(data=st.binary(max_size=200), cuts=st.lists(st.integers(min_value=0, max_value=300), max_size=5))
def test_bytes_without_a_marker_pass_unchanged(data: bytes, cuts: list[int]) -> None:
    assert through(data, cuts) == (data, None)


@pytest.mark.parametrize(
    ("event", "clean"),
    [
        (
            b'event: response.completed\ndata: {"response":{"id":"r","kv_transfer_params":{"a":1}}}\n\n',
            b'event: response.completed\ndata: {"response":{"id":"r"}}\n\n',
        ),
        (b'data: {"message":{"kv_transfer_params":{"a":1}}}\n\n', b'data: {"message":{}}\n\n'),
        (b'data: {"kv_transfer_params":{"a":1},"kvdiag":{"v":1}}\n\n', b"data: {}\n\n"),
    ],
)
def test_nested_and_double_handles_are_found(event: bytes, clean: bytes) -> None:
    assert through(event, []) == (clean, b'{"a":1}')


def test_a_null_handle_is_removed_and_none() -> None:
    assert through(b'data: {"kv_transfer_params":null,"a":1}\n\n', []) == (b'data: {"a":1}\n\n', None)


def test_broken_json_with_a_marker_passes_unchanged() -> None:
    event = b'data: {"kv_transfer_params":{"a":\n\n'
    assert through(event, []) == (event, None)


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_LIMIT", 10)
    with pytest.raises(ValueError, match="an event of more than 10 bytes"):
        EventFilter().feed(b"data: aaaaaaaaaaaaaaa")
