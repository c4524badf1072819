from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.router.answers import error_body, parse_prefill, take_handle
from kvdiag.router.bodies import APIS, Body, BodyError

PARAMS = b'{"do_remote_decode":true}'


def body(fields: dict[str, Any], path: str = "/v1/chat/completions") -> Body:
    return Body.parse(APIS[path], json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("path", "fields", "changed"),
    [
        ("/v1/chat/completions", {}, {"max_tokens": 1}),
        ("/v1/chat/completions", {"max_completion_tokens": 9}, {"max_tokens": 1, "max_completion_tokens": 1}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 9}, {"max_tokens": 1}),
        ("/v1/responses", {"input": "a"}, {"max_output_tokens": 1, "store": False}),
        ("/v1/messages", {"max_tokens": 9}, {"max_tokens": 1}),
    ],
)
def test_prefill_gets_the_same_prompt_and_one_token(path: str, fields: dict[str, Any], changed: dict[str, Any]) -> None:
    client = {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "min_tokens": 3,
        "seed": 1,
        **fields,
    }
    kept = {k: v for k, v in client.items() if k not in {"stream_options", "min_tokens"}}
    sent = json.loads(body(client, path).for_prefill(PARAMS))
    assert sent == {**kept, "stream": False, **changed, "kv_transfer_params": {"do_remote_decode": True}}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(fields=st.dictionaries(st.text(), VALUES, max_size=5))
def test_decode_gets_what_the_client_sent(fields: dict[str, Any]) -> None:
    fields.pop("kv_transfer_params", None)
    assert json.loads(body({**fields, "kv_transfer_params": {"stolen": 1}}).for_decode(None)) == fields
    assert json.loads(body(fields).for_decode(PARAMS)) == {**fields, "kv_transfer_params": {"do_remote_decode": True}}


@given(data=st.binary(max_size=100))
def test_any_bytes_are_a_body_or_an_error(data: bytes) -> None:
    try:
        parsed = Body.parse(APIS["/v1/chat/completions"], data)
    except BodyError:
        return
    assert parsed.one_prompt_one_answer in {True, False}
    parsed.history()
    parsed.for_prefill(PARAMS)


@pytest.mark.parametrize(
    ("path", "fields", "single"),
    [
        ("/v1/chat/completions", {"n": 1, "best_of": None}, True),
        ("/v1/chat/completions", {"n": 2}, False),
        ("/v1/completions", {"prompt": "a"}, True),
        ("/v1/completions", {"prompt": ["a"]}, True),
        ("/v1/completions", {"prompt": ["a", "b"]}, False),
        ("/v1/completions", {"prompt": [1, 2, 3]}, True),
        ("/v1/completions", {"prompt": [[1], [2]]}, False),
        ("/v1/completions", {"prompt": "a", "use_beam_search": True}, False),
    ],
)
def test_requests_that_become_several_on_the_engine_are_known(
    path: str, fields: dict[str, Any], *, single: bool
) -> None:
    assert body(fields, path).one_prompt_one_answer is single


def test_duplicate_keys_count_as_the_engine_counts_them() -> None:
    parsed = Body.parse(
        APIS["/v1/chat/completions"], b'{"model":"a","model":"b","kv_transfer_params":1,"kv_transfer_params":2}'
    )
    assert parsed.model == "b"
    assert json.loads(parsed.for_decode(None)) == {"model": "b"}


@pytest.mark.parametrize(
    ("answer", "prompt", "cached"),
    [
        ({"usage": {"prompt_tokens": 5}}, 5, None),
        ({"usage": {"input_tokens": 5}}, 5, None),
        ({"usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}}, 5, 3),
        ({"kv_transfer_params": {"remote_prefill_cached_tokens": 4}, "usage": None}, None, 4),
        ({"kv_transfer_params": {"remote_prefill_cached_tokens": "x"}}, None, None),
        ({"kv_transfer_params": None}, None, None),
    ],
)
def test_prefills_counts_are_read(answer: dict[str, Any], prompt: int | None, cached: int | None) -> None:
    parsed = parse_prefill(json.dumps(answer).encode())
    assert parsed is not None
    assert (parsed.prompt_tokens, parsed.cached_tokens) == (prompt, cached)


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b'{"kv_transfer_params":3}', b'{"usage":{"prompt_tokens":"x"}}', b"\xff"]
)
def test_strange_prefill_answers_are_none(answer: bytes) -> None:
    assert parse_prefill(answer) is None


@given(data=st.binary(max_size=100))
def test_taking_a_handle_from_anything_is_safe(data: bytes) -> None:
    cleaned, handle = take_handle(data)
    assert handle is None or cleaned != data


def test_errors_have_openais_shape() -> None:
    error = json.loads(error_body(503, 'a "quoted" text'))["error"]
    assert error == {"message": 'a "quoted" text', "type": "server_error", "param": None, "code": 503}
    assert json.loads(error_body(404, "x"))["error"]["type"] == "invalid_request_error"
