"""However many processes read, the diagnosis is the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from kvdiag.diagnosis import Options, classify, reading
from kvdiag.diagnosis.follow import follow

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

_CASE = Path(__file__).parent.parent / "cases" / "18-transfer-failed-remote-disconnect-after-days"


def test_many_processes_and_small_blocks_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(path) for path in sorted(_CASE.glob("*.log"))]
    alone = classify(paths, Options(jobs=1, turns=True))
    monkeypatch.setattr(reading, "_WORTH_A_POOL", 0)
    monkeypatch.setattr(reading, "_RANGE", 5_000)

    together = classify(paths, Options(jobs=2, turns=True))

    assert together == alone


def test_progress_ends_at_the_size_of_the_files() -> None:
    calls: list[tuple[int, int]] = []

    classify([str(_CASE / "decode.log")], Options(), lambda done, total: calls.append((done, total)))

    assert calls[-1] == ((_CASE / "decode.log").stat().st_size,) * 2


def test_an_interruption_reports_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reading.pieces

    def broken(*arguments: object) -> Iterator[reading.Piece]:
        yield from list(whole(*arguments))[:1]  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr("kvdiag.diagnosis.pipeline.pieces", broken)

    report = classify([str(_CASE / "decode.log"), str(_CASE / "prefill.log")])

    assert report.interrupted
    assert report.verdict.cause == "transfer_failed"


def test_a_log_that_grows_is_read_on(tmp_path: Path) -> None:
    log = tmp_path / "decode.log"
    lines = (_CASE / "decode.log").read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:3]))
    pauses = iter([lines[3:40], lines[40:]])

    def pause(_seconds: float) -> None:
        more = next(pauses, None)
        if more is None:
            raise KeyboardInterrupt
        with log.open("ab") as stream:
            stream.writelines(more)

    causes = [report.verdict.cause for report in follow([str(log)], Options(), pause=pause)]

    assert causes == ["healthy", "transfer_failed", "transfer_failed"]


def test_a_log_that_was_started_anew_is_read_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "decode.log"
    shutil.copy(Path(__file__).parent.parent / "cases" / "01-healthy-bidirectional" / "decode.log", log)
    written = iter([(_CASE / "decode.log").read_bytes()[:6000].rpartition(b"\n")[0] + b"\n"])

    def pause(_seconds: float) -> None:
        content = next(written, None)
        if content is None:
            raise KeyboardInterrupt
        log.write_bytes(content)

    causes = [report.verdict.cause for report in follow([str(log)], Options(), pause=pause)]

    assert causes == ["healthy", "transfer_failed"]
