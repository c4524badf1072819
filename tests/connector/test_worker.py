"""What a rank tells about reads, notifications and releases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.connector.outbox import LIMIT, Outbox
from kvdiag.connector.worker import NOTE, WorkerSide, annotate, failure_of


@dataclass
class Measured:
    xferDuration: float  # noqa: N815 - NIXL's names
    postDuration: float  # noqa: N815
    totalBytes: int  # noqa: N815
    descCount: int  # noqa: N815


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


@pytest.fixture
def side(outbox: Outbox) -> WorkerSide:
    return WorkerSide(outbox, leads=True)


def receive(
    side: WorkerSide, *messages: bytes, notified: tuple[str, ...] = (), held: tuple[str, ...] = ()
) -> list[bytes]:
    """Deal with NIXL's messages as vLLM's worker does; return what upstream sees of them."""
    seen = side.sift({"agent": list(messages)})["agent"]
    side.notified(notified, held.__contains__)
    return seen


def test_a_read_of_two_transfers_adds_bytes_and_takes_the_slower(side: WorkerSide, outbox: Outbox) -> None:
    side.reading("r", "engine")
    side.moved("r", Measured(2e6, 1e5, 10, 1))
    side.moved("r", Measured(1e6, 2e5, 20, 2))
    side.moved("r", None)
    side.received(["r"])
    assert outbox.drain() == [["moved", "r", 30, 2.0, 0.2, 3]]


def test_the_first_reason_for_a_failure_is_the_reason(side: WorkerSide, outbox: Outbox) -> None:
    side.reading("r", "engine")
    side.failing("r", "expired_remote_read")
    side.failing("r", "transfer_failed")
    side.received(["r"])
    assert outbox.drain() == [["failed", "r", "expired_remote_read", None, "engine"]]


def test_a_read_behind_a_broken_handshake_failed_because_of_it(side: WorkerSide, outbox: Outbox) -> None:
    side.reading("r", "engine")
    side.handshaken("engine", 5.0, ("peer_unreachable", "restarted"))
    side.failing("r", "transfer_failed")
    side.reading("silent", "engine")
    side.received(["r", "silent"])
    assert outbox.drain()[1:] == [
        ["failed", "r", "peer_unreachable", "restarted", "engine"],
        ["failed", "silent", "peer_unreachable", "restarted", "engine"],
    ]


def test_a_handshake_that_succeeds_mends_the_engine(side: WorkerSide, outbox: Outbox) -> None:
    side.handshaken("engine", 5.0, ("peer_unreachable", "handshake_failed"))
    side.handshaken("engine", 0.5, None)
    side.reading("r", "engine")
    side.moved("r", Measured(1, 1, 1, 1))
    side.received(["r"])
    assert [item[0] for item in outbox.drain()] == ["handshake", "handshake", "moved"]


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (RuntimeError("Remote NIXL agent engine ID mismatch. Expected a,received b."), "restarted"),
        (RuntimeError("NIXL compatibility hash mismatch. Local: a, Remote: b."), "incompatible"),
        (AssertionError("Local block size 16 is not divisible by remote block size 32"), "incompatible"),
        (RuntimeError("Failed to decode NixlHandshakePayload."), "incompatible"),
        (OSError("Resource temporarily unavailable"), "handshake_failed"),
    ],
)
def test_a_handshakes_exception_has_a_cause(error: Exception, detail: str) -> None:
    assert failure_of(error) == ("peer_unreachable", detail)


def test_upstream_never_sees_our_notes(side: WorkerSide) -> None:
    noted = annotate(b"old:1", "notified", "reader")
    assert receive(side, b"HB:a,b", noted, notified=("old",)) == [b"HB:a,b", b"old:1"]


@pytest.mark.parametrize("how", ["read", "notified"])
def test_a_release_is_what_the_reader_said(side: WorkerSide, outbox: Outbox, how: str) -> None:
    receive(side, annotate(b"old:1", how, "reader"), notified=("old",))
    side.let_go(["old"])
    assert outbox.drain() == [["released", "old", how]]


def test_a_stock_readers_release_is_a_read_and_one_without_notification_an_expiry(
    side: WorkerSide, outbox: Outbox
) -> None:
    receive(side, b"old:1", notified=("old",))
    side.let_go(["old", "idle"])
    assert outbox.drain() == [["released", "old", "read"], ["released", "idle", "expired"]]


def test_a_read_of_blocks_no_longer_held_is_suspect_and_names_its_reader(side: WorkerSide, outbox: Outbox) -> None:
    receive(side, annotate(b"gone:1", "read", "late-reader"))
    receive(side, b"stock:1")
    assert outbox.drain() == [["suspect", "gone", "late-reader"], ["suspect", "stock", None]]


def test_a_second_read_within_one_poll_is_suspect(side: WorkerSide, outbox: Outbox) -> None:
    receive(side, b"old:1", b"old:1", notified=("old",))
    assert outbox.drain() == [["suspect", "old", None]]


def test_one_of_two_readers_is_not_suspect(side: WorkerSide, outbox: Outbox) -> None:
    receive(side, b"old:2", held=("old",))
    assert outbox.drain() == []


def test_only_the_leading_rank_reports_what_all_see() -> None:
    outbox = Outbox()
    side = WorkerSide(outbox, leads=False)
    receive(side, b"gone:1")
    side.handshaken("engine", 1.0, None)
    assert outbox.drain() == []


@given(st.lists(st.one_of(st.binary(max_size=30), st.binary(max_size=30).map(lambda tail: NOTE + tail)), max_size=5))
def test_any_message_passes_without_what_was_added(messages: list[bytes]) -> None:
    side = WorkerSide(Outbox(), leads=True)
    plain = [message.partition(b"\n")[2] if message.startswith(NOTE) else message for message in messages]
    assert receive(side, *messages) == [message for message in plain if message]


def test_only_reads_that_a_holder_understands_are_annotated(side: WorkerSide) -> None:
    side.keep_notes({"r": "read"})
    assert side.annotated("r", b"old:1") == annotate(b"old:1", "read", "r")
    assert side.annotated("other", b"old:1") == b"old:1"
    side.forget("r")
    assert side.annotated("r", b"old:1") == b"old:1"


def impatient(outbox: Outbox) -> tuple[WorkerSide, list[float]]:
    now = [0.0]
    return WorkerSide(outbox, leads=True, read_timeout_s=30.0, clock=lambda: now[0]), now


def test_a_read_is_overdue_when_it_has_been_in_flight_for_too_long(outbox: Outbox) -> None:
    side, now = impatient(outbox)
    assert side.overdue(["slow", "quick"]) == []
    now[0] = 20.0
    assert side.overdue(["slow", "late"]) == []
    now[0] = 31.0
    assert side.overdue(["slow", "late"]) == ["slow"]


def test_without_a_timeout_no_read_is_overdue(side: WorkerSide) -> None:
    assert side.overdue(["slow"]) == []
    assert side.overdue(["slow"]) == []


def test_no_read_is_given_up_while_its_end_might_be_dropped(outbox: Outbox) -> None:
    side, now = impatient(outbox)
    side.overdue(["slow"])
    now[0] = 31.0
    outbox.extend([["unverified"]] * LIMIT)
    assert side.overdue(["slow"]) == []
    outbox.drain()
    assert side.overdue(["slow"]) == ["slow"]


def test_a_read_given_up_has_failed_and_is_followed_under_another_id(outbox: Outbox) -> None:
    side, now = impatient(outbox)
    side.reading("slow", "engine")
    side.overdue(["slow"])
    followed = side.give_up("slow")
    side.received(["slow"])
    assert outbox.drain() == [["stalled", "slow"], ["failed", "slow", "transfer_failed", "stalled", "engine"]]

    now[0] = 100.0
    assert side.overdue([followed]) == []
    over = {followed, "other"}
    side.settle(over)
    assert over == {"other"}
    assert outbox.drain() == [["settled", "slow"]]


def test_memory_of_notes_is_bounded(side: WorkerSide) -> None:
    for number in range(10_000):
        receive(side, annotate(b"%d:1" % number, "read", "reader"))
    kept: Any = side._told
    assert len(kept) == 4096
