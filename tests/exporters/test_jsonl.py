"""The JSONL sink never blocks, never raises, and never leaves half a line."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from kvdiag.events import KvEvent, TurnRecord, utc_now
from kvdiag.exporters.jsonl import JsonlSink

if TYPE_CHECKING:
    from collections.abc import Callable


class Drops:
    """Counts, as the metric would."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def drops() -> Drops:
    return Drops()


def turn(number: int) -> TurnRecord:
    return TurnRecord(ts=utc_now(), request_id=f"r{number}", conversation=None, turn=number, status=200)


def read(path: Path) -> list[int]:
    return [json.loads(line)["turn"] for line in path.read_text().splitlines()]


def test_writes_one_object_a_line_in_order(tmp_path: Path, drops: Drops) -> None:
    sink = JsonlSink(tmp_path / "turns.jsonl", on_drop=drops)
    for number in range(100):
        sink.write(turn(number))
    sink.close()
    assert read(tmp_path / "turns.jsonl") == list(range(100))
    assert drops.count == 0


def test_turn_lines_keep_unknown_values_and_event_lines_leave_them_out(tmp_path: Path, drops: Drops) -> None:
    event = KvEvent(ts=utc_now(), request_id="r", role="decode", engine_id="e", kind="retain", blocks=3)
    sink = JsonlSink(tmp_path / "log", on_drop=drops)
    sink.write(turn(1))
    sink.write(event)
    sink.close()
    first, second = (json.loads(line) for line in (tmp_path / "log").read_text().splitlines())
    assert first["ttft_s"] is None
    assert "bytes" not in second
    assert msgspec.convert(second, KvEvent) == event


def test_appends_to_what_is_there(tmp_path: Path, drops: Drops) -> None:
    for number in (1, 2):
        sink = JsonlSink(tmp_path / "log", on_drop=drops)
        sink.write(turn(number))
        sink.close()
    assert read(tmp_path / "log") == [1, 2]


def test_rotates_and_keeps_the_newest(tmp_path: Path, drops: Drops) -> None:
    path = tmp_path / "log"
    for number in range(6):  # a sink each, so that every record is a batch of its own
        sink = JsonlSink(path, on_drop=drops, max_bytes=1, keep=3)
        sink.write(turn(number))
        sink.close()
    assert [read(tmp_path / name) for name in ("log.1", "log.2", "log.3")] == [[5], [4], [3]]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["log.1", "log.2", "log.3"]
    assert drops.count == 0


def _missing_folder(tmp_path: Path) -> Path:
    return tmp_path / "no" / "such" / "folder" / "log"


def _folder(tmp_path: Path) -> Path:
    return tmp_path


def _full_device(tmp_path: Path) -> Path:
    del tmp_path
    return Path("/dev/full")


@pytest.mark.parametrize("target", [_missing_folder, _folder, _full_device])
def test_a_path_that_cannot_be_written_drops_and_counts(
    target: Callable[[Path], Path], tmp_path: Path, drops: Drops
) -> None:
    sink = JsonlSink(target(tmp_path), on_drop=drops)
    for number in range(3):
        sink.write(turn(number))
    sink.close()
    assert drops.count == 3


def test_recovers_when_the_path_can_be_written_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "later" / "log"
    dropped = threading.Event()
    sink = JsonlSink(path, on_drop=dropped.set)
    sink.write(turn(1))
    assert dropped.wait(10)
    path.parent.mkdir()
    sink.write(turn(2))
    sink.close()
    assert read(path) == [2]
    refused, recovered = (record.getMessage() for record in caplog.records)
    assert refused == f"cannot write {path}: No such file or directory; records are dropped and counted"
    assert recovered == f"{path} can be written again"


def test_a_disk_that_fills_up_leaves_whole_lines_only(tmp_path: Path) -> None:
    """A file size limit makes the kernel cut a write short, as a full disk does."""
    script = """
import resource, sys
from pathlib import Path
from kvdiag.events import TurnRecord
from kvdiag.exporters.jsonl import JsonlSink
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
dropped = []
for number in range(8):
    sink = JsonlSink(Path(sys.argv[1]), on_drop=lambda: dropped.append(1))
    sink.write(TurnRecord(ts="t", request_id="r", conversation=None, turn=number, status=200))
    sink.close()
print(len(dropped))
"""
    path = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], check=True, capture_output=True, text=True, timeout=60
    )
    kept = read(path)
    assert kept == list(range(len(kept)))
    assert len(kept) + int(done.stdout) == 8
    assert 0 < len(kept) < 8


def test_a_full_queue_drops_instead_of_waiting(tmp_path: Path, drops: Drops) -> None:
    """The writer thread is held in the middle of a batch, so nothing leaves the queue."""
    held, go = threading.Event(), threading.Event()

    class Slow(JsonlSink):
        def _append(self, data: bytes) -> None:
            if data:
                held.set()
                go.wait(30)
            super()._append(data)

    sink = Slow(tmp_path / "log", on_drop=drops, queue_limit=2)
    sink.write(turn(0))
    assert held.wait(10)
    for number in range(1, 6):
        sink.write(turn(number))
    assert drops.count == 3
    go.set()
    sink.close()
    assert read(tmp_path / "log") == [0, 1, 2]
