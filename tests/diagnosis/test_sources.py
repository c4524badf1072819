"""Files, directories, compressed and rotated logs become blocks of whole lines, oldest first."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.diagnosis.sources import find_sources, is_plain, read_blocks, read_range, whole_lines
from kvdiag.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer


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


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize("lines", [3, 200_000])
def test_what_a_truncated_archive_still_holds_is_read(
    pack: Callable[[bytes], bytes], lines: int, tmp_path: Path
) -> None:
    content = b"".join(b"%d %x\n" % (number, hash(str(number)) & 0xFFFFFF) for number in range(lines))
    path = tmp_path / "a.log"
    path.write_bytes(pack(content)[:-5])
    read: list[bytes] = []

    with pytest.raises(InputError, match=r"a\.log: compressed file ended before"):
        read.extend(read_blocks(str(path)))

    assert content.startswith(b"".join(read))
    assert len(b"".join(read)) > len(content) * 0.3 or lines < 10


@given(st.lists(st.binary(max_size=100), max_size=8))
def test_zstd_frames_follow_one_another(contents: list[bytes]) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(map(zstandard.compress, [b"first\n", *contents])))
        file.flush()

        assert b"".join(read_blocks(file.name)) == b"".join([b"first\n", *contents])


@pytest.mark.parametrize(
    ("pack", "name"),
    [(lzma.compress, "xz"), (bz2.compress, "bzip2"), (lambda content: b"PK\x03\x04" + content, "zip")],
    ids=["xz", "bzip2", "zip"],
)
def test_a_compression_that_is_not_read_is_named_with_the_remedy(
    pack: Callable[[bytes], bytes], name: str, tmp_path: Path
) -> None:
    path = tmp_path / "engine.log"
    path.write_bytes(pack(b"INFO a line\n" * 100))
    assert not is_plain(str(path))
    with pytest.raises(InputError, match=f"engine.log: compressed with {name}, .*decompress it first"):
        list(read_blocks(str(path)))


def test_a_folder_that_may_not_be_entered_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "decode.log").touch()
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def refuse(path: str) -> object:
        if Path(path).name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)

    assert [Path(source.name).name for source in find_sources([str(tmp_path)])] == ["closed", "decode.log"]


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=40), st.integers(1, 50))
def test_blocks_hold_whole_lines_and_lose_nothing(lines: list[bytes], size: int) -> None:
    content = b"\n".join(lines)

    blocks = list(whole_lines(io.BytesIO(content), size))

    assert b"".join(blocks) == content
    assert all(block.endswith(b"\n") for block in blocks[:-1])


@given(st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=30), st.integers(1, 40))
def test_ranges_share_the_lines_out(lines: list[bytes], step: int) -> None:
    content = b"\n".join(lines)
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        ranges = [read_range(file.name, at, min(at + step, len(content))) for at in range(0, len(content), step)]

    assert b"".join(ranges) == content
    assert all(block.endswith(b"\n") for block in ranges[:-1] if block and not content.endswith(block))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_a_tar_archive_is_refused(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("prefill.log"))
    path = tmp_path / "logs.tar"
    path.write_bytes(pack(archive.getvalue()))

    assert not is_plain(str(path))
    with pytest.raises(InputError, match="a tar archive, which is not read; unpack it first"):
        list(read_blocks(str(path)))


def test_a_range_inside_a_monstrous_line_reads_no_further_than_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "engine.log"
    path.write_bytes(b"x" * 100_000 + b"\nlast\n")
    read: list[int] = []

    class Counting(io.FileIO):
        def readinto(self, buffer: Buffer, /) -> int | None:
            got = super().readinto(buffer)
            read.append(got or 0)
            return got

    monkeypatch.setattr(Path, "open", lambda self, _mode: io.BufferedReader(Counting(self), buffer_size=512))
    assert read_range(str(path), 1000, 2000) == b""
    assert sum(read) < 5000
