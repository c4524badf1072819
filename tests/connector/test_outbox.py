"""Nothing of ours waits, grows without bound, or raises into the engine."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kvdiag.connector.outbox import Outbox

if TYPE_CHECKING:
    import pytest


def test_what_does_not_fit_is_counted() -> None:
    outbox = Outbox(limit=2)
    for number in range(5):
        outbox.put("event", number)
    assert outbox.drain() == [["event", 0], ["event", 1], ["dropped", 3]]
    assert outbox.drain() == []


def test_an_exception_of_ours_is_counted_each_time_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    outbox = Outbox()

    def broken(_argument: int) -> int:
        raise ZeroDivisionError

    with caplog.at_level(logging.WARNING):
        assert [outbox.guard(broken, 1), outbox.guard(broken, 2)] == [None, None]
    assert len(caplog.records) == 1
    assert [item[0] for item in outbox.drain()] == ["error", "error"]


def test_a_guarded_result_comes_back() -> None:
    assert Outbox().guard(divmod, 7, 2) == (3, 1)
