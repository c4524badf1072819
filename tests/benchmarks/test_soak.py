"""The soak at a size that takes seconds, and that it would notice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from benchmarks.soak import mock, pair
from benchmarks.soak.account import Account, turn_log_lines
from benchmarks.soak.watch import Course, objects, resident_mib

if TYPE_CHECKING:
    from pathlib import Path


def test_every_turn_on_mock_engines_is_accounted_for(tmp_path: Path) -> None:
    account = mock.run(mock.Size(turns=1_000, conversations=200, streams=32), tmp_path, print)
    assert [entry for entry in account.entries if not entry.right] == []
    assert {course.name: len(course.values) > 2 for course in account.courses} == dict.fromkeys(
        ("router, MiB", "router, objects", "export, MiB", "export, objects"), True
    )


def test_forks_edits_and_hang_ups_are_accounted_for(tmp_path: Path) -> None:
    with ExitStack() as unwind:
        rig = mock.MockRig(tmp_path)
        rig.start(unwind)
        day = pair.Day(rig.router.port)
        agents = [threading.Thread(target=day.run, args=(seed,)) for seed in range(6)]
        for agent in agents:
            agent.start()
        while not {"goes on", "forks", "edits", "hangs up"} <= set(day.sent) and not day.problems:
            time.sleep(0.1)
        day.over.set()
        for agent in agents:
            agent.join()
        (tmp_path / "prefill-events.jsonl").touch()
        account = pair._account(rig.router, tmp_path, day.sent.total())
        assert rig.stats()["twice"] == 0
    assert not day.problems
    assert account.problems == []


def test_a_request_of_decode_that_was_read_twice_is_noticed(tmp_path: Path) -> None:
    read = {"kind": "transfer", "direction": "decode_to_prefill"}
    events = [
        {**read, "remote_request_id": "a"},
        {**read, "remote_request_id": "b"},
        {**read, "remote_request_id": "a"},
        {"kind": "transfer", "direction": "prefill_to_decode", "remote_request_id": "a"},
        {"kind": "match"},
    ]
    (tmp_path / "prefill-events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    assert pair._claimed_twice(tmp_path) == 1


def test_a_figure_that_does_not_agree_is_a_problem() -> None:
    account = Account()
    account.enter("turns", 10, 10)
    account.enter("handles sent twice", 0, 1)
    account.courses.append(Course("router, MiB", 0.05, [10.0, 20.0, 20.0, 20.0, 20.0, 30.0]))
    assert account.problems == ["handles sent twice: 1, expected 0", "router, MiB: grew by 50.0%, at most 5% allowed"]
    assert "| handles sent twice | 0 | 1 |" in account.lines()


@pytest.mark.parametrize(
    ("values", "flat"),
    [
        ([1, 5, 9, 10, 10, 10, 10, 10, 10], True),
        ([10, 10, 10, 10, 10, 10, 11, 12, 13], False),
        ([10, 10, 10, 30, 10, 10, 12, 12, 12], True),
        ([10], True),
    ],
    ids=["filling up first", "growing to the end", "a peak in the middle is no growth", "one look"],
)
def test_growth_is_what_comes_after_the_middle(values: list[float], *, flat: bool) -> None:
    assert Course("x", 0.05, values).flat is flat


def test_rotated_turn_logs_are_counted_too(tmp_path: Path) -> None:
    (tmp_path / "turns.jsonl").write_text("{}\n")
    (tmp_path / "turns.jsonl.1").write_text("{}\n{}\n")
    assert turn_log_lines(tmp_path) == 3


def test_a_process_tells_its_objects_and_the_kernel_its_memory(tmp_path: Path) -> None:
    code = "import time, sys; sys.argv[1:] = [sys.argv[1]]; from pathlib import Path; "
    code += (
        "from benchmarks.soak import counted; counted._install(Path(sys.argv[1])); print(flush=True); time.sleep(60)"
    )
    answer = tmp_path / "objects"
    with subprocess.Popen([sys.executable, "-c", code, answer], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert objects(process.pid, answer) > 1000
        assert resident_mib(process.pid) > 1
        os.kill(process.pid, signal.SIGKILL)
