"""Uneventful periodic lines are left unread, eventful ones and their neighbours never."""

from __future__ import annotations

import re

import pytest

from kvdiag.diagnosis.options import FELT_S
from kvdiag.diagnosis.scan import scan

_LOAD = (
    "(APIServer pid=1) INFO 10-14 09:00:{at:02d} [f.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation "
    "throughput: 9.0 tokens/s, Running: 9 reqs, Waiting: {waiting} reqs, GPU KV cache usage: 20.0%\n"
)
_TRANSFERS = (
    "(APIServer pid=1) INFO 10-14 09:00:00 [f.py:1] KV Transfer metrics: Num successful transfers={n}, Avg xfer time (ms)={ms}, "
    "P90 xfer time (ms)=31.0, Avg post time (ms)=1.2, P90 post time (ms)=1.4, Avg MB per transfer=96.5, Throughput "
    "(MB/s)=4308.0, Avg number of descriptors=128.0, Num failed transfers={failed}, Num KV expired reqs=0, Num notifs after expiry={late}\n"
)


def _waiting(*values: int) -> list[int]:
    block = "".join(_LOAD.format(at=number % 60, waiting=value) for number, value in enumerate(values))
    return [int(fact.data["waiting"]) for fact in scan(block.encode()).facts]


def test_what_happens_rarely_is_kept_with_the_line_before_it() -> None:
    read = _waiting(*[0] * 1000, 30, *[1] * 5, 31, *[0] * 1000)

    assert [value for value in read if value >= 30] == [30, 31]
    assert read[read.index(31) - 1] == 1
    assert len(read) < 250


def test_lines_left_out_are_counted_as_recognised() -> None:
    scanned = scan((_LOAD.format(at=0, waiting=0) * 1000).encode())

    assert len(scanned.facts) + (scanned.digest.kinds["load"] if scanned.digest else 0) == scanned.lines == 1000


def test_no_eventful_line_is_left_out() -> None:
    rows: list[dict[str, float]] = [{"n": 3, "ms": 20.0, "failed": 0, "late": 0}] * 500
    events: list[dict[str, float]] = [
        {"n": 3, "ms": 20.0, "failed": 1, "late": 0},
        {"n": 3, "ms": 20.0, "failed": 0, "late": 2},
        {"n": 3, "ms": 450.0, "failed": 0, "late": 0},
        {"n": 0, "ms": 0, "failed": 0, "late": 0},
    ]
    block = "".join(_TRANSFERS.format(**row) for row in [*rows, *events, *rows])

    read = [fact.data["pairs"] for fact in scan(block.encode()).facts]

    assert sum("failed transfers=1" in pairs for pairs in read) == 1
    assert sum("after expiry=2" in pairs for pairs in read) == 1
    assert sum("(ms)=450.0" in pairs for pairs in read) == 1
    assert sum("transfers=0, Avg" in pairs for pairs in read) == 1
    assert len(read) < 250


@pytest.mark.parametrize("header", ["", "2026-10-14T09:00:00Z stdout F "], ids=["plain", "in parts"])
def test_a_line_that_is_taken_up_again_keeps_its_number_and_those_after_it_theirs(header: str) -> None:
    calm = {"ms": 20.0, "failed": 0, "late": 0}
    lines = [header.replace(" F ", " P ") + "(APIServer pid=1) INFO 10-14 09:00:00 \n"] if header else []
    for number in range(1, 400):
        lines += [header + _TRANSFERS.format(n=number, **calm), header + _LOAD.format(at=0, waiting=0)]
        if number % 50 == 0:
            lines += [header + _LOAD.format(at=0, waiting=9)]
            lines += [header + _TRANSFERS.format(n=1000 + number, **calm | {"failed": 1})]

    transfers = [fact for fact in scan("".join(lines).encode(), FELT_S).facts if fact.kind == "transfers"]

    assert len(transfers) < 200
    for fact in transfers:
        (count,) = re.findall(r"transfers=(\d+), Avg xfer", fact.text)
        assert f"transfers={count}, Avg xfer" in lines[fact.line - 1]
