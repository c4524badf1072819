"""Files, directories, compressed and rotated logs become blocks of whole lines, oldest first."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.diagnosis.sources import find_sources, is_plain, read_blocks, read_range, whole_lines
from kvdiag.errors import InputError


def test_a_rotated_set_is_one_source_oldest_first(tmp_path: Path) -> None:
    names = ["decode.log", "decode.log.1", "decode.log.2.gz", "decode.log.10.zst", "prefill.log"]
    for name in names:
        (tmp_path / name).touch()

    sources = find_sources([str(tmp_path / name) for name in names])

    assert [[Path(path).name for path in source.paths] for source in sources] == [
        ["decode.log.10.zst", "decode.log.2.gz", "decode.log.1", "decode.log"],
        ["prefill.log"],
    ]


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["a.log", "a.log-20261101", "a.log-20261102"], ["a.log-20261101", "a.log-20261102", "a.log"]),
        (
            ["a.log", "a-2026-11-02T10-00-00.000.log", "a-2026-11-01.log.gz"],
            ["a-2026-11-01.log.gz", "a-2026-11-02T10-00-00.000.log", "a.log"],
        ),
        (["a.1.log", "a.2.log", "a.log"], ["a.2.log", "a.1.log", "a.log"]),
    ],
)
def test_other_ways_to_name_rotated_files(names: list[str], order: list[str], tmp_path: Path) -> None:
    (source,) = find_sources([str(tmp_path / name) for name in names])

    assert [Path(path).name for path in source.paths] == order


def test_a_directory_is_walked_without_hidden_files(tmp_path: Path) -> None:
    for name in ("node1/decode.log", "node2/decode.log", ".git/x.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    assert [Path(s.paths[0]).parent.name for s in find_sources([str(tmp_path)])] == ["node1", "node2"]


def test_a_path_named_twice_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.touch()

    assert len(find_sources([str(path), str(path)])[0].paths) == 1


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_content_is_the_same_however_it_is_packed(pack: object, tmp_path: Path) -> None:
    assert callable(pack)
    path = tmp_path / "a.log"
    path.write_bytes(pack(b"one\ntwo\n"))

    assert b"".join(read_blocks(str(path))) == b"one\ntwo\n"
    assert is_plain(str(path)) == (pack is bytes)


@pytest.mark.parametrize("packed", [gzip.compress(b"line\n" * 9000)[:-20], b"\x28\xb5\x2f\xfd" + b"\xff" * 40])
def test_a_damaged_archive_is_one_line_that_names_it(packed: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.log.gz"
    path.write_bytes(packed)

    with pytest.raises(InputError, match=r"a\.log\.gz: "):
        list(read_blocks(str(path)))


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=40), st.integers(1, 50))
def test_blocks_hold_whole_lines_and_lose_nothing(lines: list[bytes], size: int) -> None:
    content = b"\n".join(lines)

    blocks = list(whole_lines(io.BytesIO(content), size))

    assert b"".join(blocks) == content
    assert all(block.endswith(b"\n") for block in blocks[:-1])


@given(st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=30), st.integers(1, 40))
def test_ranges_share_the_lines_out(lines: list[bytes], step: int) -> None:
    import tempfile

    content = b"\n".join(lines)
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        ranges = [read_range(file.name, at, min(at + step, len(content))) for at in range(0, len(content), step)]

    assert b"".join(ranges) == content
    assert all(block.endswith(b"\n") for block in ranges[:-1] if block and not content.endswith(block))
