from __future__ import annotations

import re

import msgspec
import pytest

from kvdiag.events import KV_SCHEMA, TURN_SCHEMA, KvEvent, TurnRecord, turn_bucket, utc_now


@pytest.mark.parametrize(
    ("turn", "bucket"),
    [(0, "1"), (1, "1"), (2, "2-4"), (4, "2-4"), (5, "5-9"), (9, "5-9"), (10, "10+"), (10**9, "10+")],
)
def test_turn_numbers_fall_into_four_buckets(turn: int, bucket: str) -> None:
    assert turn_bucket(turn) == bucket


def test_times_are_rfc_3339_in_utc_with_milliseconds() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", utc_now())


def test_a_turn_record_writes_every_field_of_the_contract() -> None:
    record = TurnRecord(ts=utc_now(), request_id="r", conversation=None, turn=1, status=200)
    fields = msgspec.json.decode(msgspec.json.encode(record))
    assert fields["schema"] == TURN_SCHEMA
    assert set(fields) >= {
        *("ts", "request_id", "conversation", "turn", "model", "stream", "prefill", "decode", "lookup", "handle_age_s"),
        *("gap_s", "prompt_tokens", "local_tokens", "remote_tokens", "computed_tokens", "lost_tokens", "prefill_s"),
        *("ttft_s", "total_s", "retries", "status", "cause", "detail"),
    }


def test_readers_accept_fields_that_they_do_not_know() -> None:
    event = KvEvent(ts=utc_now(), request_id="r", role="prefill", engine_id="e", kind="match")
    fields = msgspec.json.decode(msgspec.json.encode(event)) | {"of_a_later_version": 1}
    assert msgspec.convert(fields, KvEvent) == event
    assert fields["schema"] == KV_SCHEMA
