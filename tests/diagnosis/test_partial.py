"""Lines that a runtime cut into parts are made whole, and keep their number."""

from __future__ import annotations

import pytest

from kvdiag.diagnosis.partial import rejoin

_T = b"2026-11-09T10:00:33Z"


def test_lines_that_nobody_cut_are_left_alone() -> None:
    block = _T + b" stdout F whole\n"

    assert rejoin(block) == (block, None)
    assert rejoin(b"a P b\n") == (b"a P b\n", None)


def test_parts_of_a_kubelet_line_are_joined_per_stream() -> None:
    block = b"\n".join(
        [_T + b" stdout P Declining ex", _T + b" stderr F other", _T + b" stdout F pired", _T + b" stdout F next", b""]
    )

    joined, numbers = rejoin(block)

    assert joined == b"\n".join(
        [_T + b" stdout F Declining expired", _T + b" stderr F other", _T + b" stdout F next", b""]
    )
    assert numbers == [1, 2, 4]


def test_parts_of_a_docker_record_are_joined() -> None:
    block = b'{"log":"Declining ex","stream":"stdout","time":"1"}\n{"log":"pired\\n","stream":"stdout","time":"2"}\n'

    assert rejoin(block) == (b'{"log":"Declining expired\\n","stream":"stdout","time":"1"}\n', [1])


@pytest.mark.parametrize("block", [_T + b" stdout P never finished\n", b'{"log":"never finished","stream":"stdout"}\n'])
def test_a_part_without_its_end_is_kept(block: bytes) -> None:
    joined, numbers = rejoin(block)

    assert b"never finished" in joined
    assert numbers == [1]
