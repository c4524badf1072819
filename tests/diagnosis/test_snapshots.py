"""`/metrics` snapshots: which belong together, and what rose between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvdiag.diagnosis.report import Evidence
from kvdiag.diagnosis.snapshots import Scrapes, Snapshot, pair_up, read_sample

if TYPE_CHECKING:
    from kvdiag.diagnosis.options import LogRole

_FAILED = "vllm:nixl_num_failed_transfers_total"


def _snapshot(created: float, path: str = "a.prom", **values: float) -> Snapshot:
    snapshots: list[Snapshot] = []
    rows = {"vllm:prompt_tokens_created": created, **{f"vllm:{name}": value for name, value in values.items()}}
    for line, (name, value) in enumerate(rows.items(), start=1):
        read_sample(snapshots, (name, 'engine="0"', value), Evidence(path=path, line=line, text=name))
    return snapshots[0]


def test_a_counter_rose_between_two_scrapes_of_one_process() -> None:
    first = _snapshot(1.0, "a.prom", nixl_num_failed_transfers_total=4)
    last = _snapshot(1.0, "b.prom", nixl_num_failed_transfers_total=40)

    (pair,) = pair_up([last, first])

    assert pair.rise(_FAILED) == 36
    assert [line.path for line in pair.lines(_FAILED)] == ["b.prom", "a.prom"]


def test_scrapes_of_two_processes_are_not_compared() -> None:
    scrapes = pair_up(
        [_snapshot(1.0, nixl_num_failed_transfers_total=4), _snapshot(2.0, nixl_num_failed_transfers_total=40)]
    )

    assert sorted(item.rise(_FAILED) for item in scrapes) == [4, 40]


def test_a_counter_that_fell_shows_another_process() -> None:
    assert not _snapshot(1.0, prompt_tokens_total=9).precedes(_snapshot(1.0, prompt_tokens_total=3))


def test_two_equal_scrapes_are_one_process() -> None:
    (pair,) = pair_up(
        [_snapshot(1.0, nixl_num_failed_transfers_total=4), _snapshot(1.0, nixl_num_failed_transfers_total=4)]
    )

    assert pair.rise(_FAILED) == 0


def test_prefill_generates_one_token_a_request() -> None:
    prefill = Scrapes(_snapshot(1.0, request_success_total=100, generation_tokens_total=100))
    decode = Scrapes(_snapshot(1.0, request_success_total=100, generation_tokens_total=30_000))

    assert (prefill.role, decode.role) == ("prefill", "decode")


_BUCKET = "vllm:request_params_max_tokens_bucket"


@pytest.mark.parametrize(
    ("rows", "said", "role"),
    [
        ([("kvdiag_connector_info", 'role="prefill",connector="K"', 1.0)], None, "prefill"),
        ([("kvdiag_connector_info", 'role="both"', 1.0)], None, "decode"),
        ([(_BUCKET, 'le="1.0"', 51.0), (_BUCKET, 'le="2.0"', 51.0)], None, "prefill"),
        ([(_BUCKET, 'le="1.0"', 9.0), (_BUCKET, 'le="2.0"', 99.0)], None, "decode"),
        ([("kvdiag_connector_info", 'role="decode"', 1.0)], "prefill", "prefill"),
    ],
)
def test_what_is_said_of_a_role_counts_before_the_tokens(
    rows: list[tuple[str, str, float]], said: LogRole | None, role: LogRole
) -> None:
    generating = [("vllm:request_success_total", "", 100.0), ("vllm:generation_tokens_total", "", 1200.0)]
    snapshots: list[Snapshot] = []
    for sample in [*generating, *rows]:
        read_sample(snapshots, sample, Evidence(path="a", line=1, text=""), said)

    assert [Scrapes(snapshot).role for snapshot in snapshots] == [role]


def test_two_scrapes_in_one_file_are_told_apart() -> None:
    snapshots: list[Snapshot] = []
    for value in (4.0, 7.0, 9.0):
        read_sample(snapshots, (_FAILED, "", value), Evidence(path="a", line=1, text=""))

    (pair,) = pair_up(snapshots)
    assert pair.rise(_FAILED) == 5
