"""Turns read from logs are counted once, and only when their story is complete."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from prometheus_client import CollectorRegistry

from kvdiag.exporters import observed
from kvdiag.exporters.observed import TurnCounter


@dataclass
class Turn:
    """What an observer tells."""

    request_id: str = "r"
    turn: int | None = 2
    cause: str = "remote_hit"
    detail: str | None = None
    prompt_tokens: int | None = None
    local_tokens: int | None = None
    remote_tokens: int | None = None
    computed_tokens: int | None = None
    lost_tokens: int | None = None
    prefill_s: float | None = None
    ttft_s: float | None = None
    gap_s: float | None = None
    transfer_bytes: int | None = None
    transfer_s: float | None = None


class Counted:
    """A counter and what it exposes."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.counter = TurnCounter(self.registry, settle_s=10)

    def turns(self, cause: str, detail: str = "", turn: str = "2-4") -> float | None:
        return self.value("kvdiag_turns_total", cause=cause, detail=detail, turn=turn)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def counted() -> Counted:
    return Counted()


def test_a_turn_counts_once_it_has_settled_and_never_again(counted: Counted) -> None:
    seen = []
    for now in (0, 5, 10, 20, 40):
        counted.counter.see([Turn()], now)
        seen.append(counted.turns("remote_hit"))
    assert seen == [0, 0, 1, 1, 1]


def test_a_cause_that_changes_while_lines_arrive_counts_as_what_it_became(counted: Counted) -> None:
    counted.counter.see([Turn(cause="unexplained")], 0)
    counted.counter.see([Turn(cause="expired_remote_read", detail="declined")], 9)
    counted.counter.see([Turn(cause="expired_remote_read", detail="declined")], 12)
    assert counted.turns("expired_remote_read", "declined") == 0
    counted.counter.see([Turn(cause="expired_remote_read", detail="declined")], 19)
    assert counted.turns("expired_remote_read", "declined") == 1
    assert counted.turns("unexplained") == 0


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("suspect_kv", "read_after_release"),
        ("expired_handoff", "lease_lapsed"),
        ("expired_remote_read", "read_declined"),
    ],
)
def test_a_turn_that_met_expired_blocks_counts_where_alerts_look(counted: Counted, cause: str, kind: str) -> None:
    for now in (0, 10):
        counted.counter.see([Turn(cause=cause), Turn("well")], now)
    assert counted.value("kvdiag_expiries_total", kind=kind) == 1


def test_history_is_not_counted(counted: Counted) -> None:
    counted.counter.skip([Turn()])
    for now in (0, 100):
        counted.counter.see([Turn(), Turn("new")], now)
    assert counted.turns("remote_hit") == 1


def test_everything_that_is_known_is_exposed_under_the_catalogues_names(counted: Counted) -> None:
    turn = Turn(
        cause="prefix_diverged",
        detail="in_history",
        turn=7,
        prompt_tokens=5000,
        remote_tokens=1000,
        computed_tokens=4000,
        lost_tokens=3500,
        prefill_s=0.5,
        ttft_s=0.9,
        gap_s=12,
        transfer_bytes=1 << 20,
        transfer_s=0.02,
    )
    for now in (0, 10):
        counted.counter.see([turn], now)
    labels = {"cause": "prefix_diverged", "turn": "5-9", "arm": "reuse"}
    assert counted.value("kvdiag_turn_ttft_seconds_sum", **labels) == 0.9
    by_prompt = {"prompt": "4k-16k", "reused": "no", "arm": "reuse"}
    assert counted.value("kvdiag_turn_ttft_by_prompt_seconds_count", **by_prompt) == 1
    assert counted.value("kvdiag_lost_tokens_total", cause="prefix_diverged", detail="in_history") == 3500
    assert counted.value("kvdiag_prompt_tokens_total", source="computed") == 4000
    assert counted.value("kvdiag_transfer_bytes_total", direction="decode_to_prefill") == 1 << 20
    assert counted.value("kvdiag_inter_turn_gap_seconds_sum") == 12


@pytest.mark.parametrize(
    ("turn", "bucket"), [(Turn(turn=None, cause="first_turn"), "1"), (Turn(turn=None), "2-4"), (Turn(turn=12), "10+")]
)
def test_a_turn_without_a_number_is_first_only_by_its_cause(turn: Turn, bucket: str, counted: Counted) -> None:
    for now in (0, 10):
        counted.counter.see([turn], now)
    assert counted.turns(turn.cause, turn=bucket) == 1


def test_memory_is_bounded(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "REMEMBERED", 3)
    turns = [replace(Turn(), request_id=str(number)) for number in range(10)]
    counted.counter.skip(turns)
    assert len(counted.counter._counted) == 3
