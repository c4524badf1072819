from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.context import KEY, HandleContext, TurnContext, TurnOutcome, parse

if TYPE_CHECKING:
    from collections.abc import Callable

PARSE: dict[type[msgspec.Struct], Callable[[object], object]] = {
    TurnContext: lambda params: parse(TurnContext, params),
    TurnOutcome: lambda params: parse(TurnOutcome, params),
    HandleContext: lambda params: parse(HandleContext, params),
}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    "record",
    [
        TurnContext(conversation="c", turn=3, lookup="hit", age_s=1.5),
        TurnOutcome(cause="remote_hit", remote_tokens=128),
        HandleContext(prefix="00ff", prompt_tokens=100, ttl_s=480.0),
    ],
)
def test_a_record_survives_the_trip_through_transfer_params(record: TurnContext | TurnOutcome | HandleContext) -> None:
    wire = msgspec.json.decode(msgspec.json.encode({"remote_engine_id": "e", KEY: record}))
    assert wire[KEY]["v"] == 1
    assert PARSE[type(record)](wire) == record


@pytest.mark.parametrize(
    "params",
    [None, [], "text", {}, {KEY: None}, {KEY: []}, {KEY: {}}, {KEY: {"v": 2, "turn": 1}}, {KEY: {"v": 1, "turn": "x"}}],
)
def test_what_cannot_be_read_is_absent(params: object) -> None:
    assert parse(TurnContext, params) is None


@given(JSON, st.dictionaries(st.sampled_from(["v", "turn", "conversation", "cause", "prefix", "ttl_s"]), JSON))
def test_strangers_cannot_make_it_raise(anything: object, fields: dict[str, object]) -> None:
    for params in (anything, {KEY: anything}, {KEY: {"v": 1, **fields}}):
        for kind, read in PARSE.items():
            record = read(params)
            assert record is None or isinstance(record, kind)
