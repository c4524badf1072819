"""Inputs: files, directories, stdin, compressed files and rotated sets, as blocks of whole lines."""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import sys
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol, cast

import zstandard

from kvdiag.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Buffer

BLOCK: Final = 4 << 20
_MAX_LINE: Final = 16 << 20
STDIN: Final = "-"

_NUMBERED: Final = re.compile(r"(?P<base>.+?)\.(?P<age>\d{1,4})$")
_NUMBERED_BEFORE: Final = re.compile(r"(?P<base>.+?)\.(?P<age>\d{1,3})(?P<end>\.(?:log|txt|json|out))$")
_DATED: Final = re.compile(
    r"(?P<base>.+?)[-.](?P<date>20\d\d-?\d\d-?\d\d(?:[T_-]?[\d.:-]+)?)(?P<end>\.(?:log|txt|json|out))?$"
)
_COMPRESSED: Final = (".gz", ".zst", ".zstd")
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_UNREAD_MAGIC: Final = {b"\xfd7zX": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip", b"\x04\x22\x4d\x18": "lz4"}
# POSIX 1003.1-1988: the first file's header, 257 bytes into the archive.
_TAR_MAGIC: Final = b"ustar"
_TAR_AT: Final = slice(257, 262)
_HEAD: Final = 512
# What one step unpacks stays small whatever it was packed from: a block of zstd's is 128 KiB and may take four bytes.
_ZSTD_STEP: Final = 1 << 10
_BROKEN: Final = (OSError, EOFError, zlib.error, zstandard.ZstdError)


class Peekable(Protocol):
    """A stream whose next bytes can be looked at."""

    def peek(self, size: int, /) -> bytes:
        """Return some of the next bytes and leave them there."""
        ...


@dataclass(frozen=True, slots=True)
class Source:
    """One log: the files of one rotated set, oldest first."""

    name: str
    paths: tuple[str, ...]


def find_sources(paths: Sequence[str]) -> list[Source]:
    """Return the logs under `paths` in an order that does not depend on theirs.

    Directories are walked (hidden files left out); files that a rotation split belong to one source.
    """
    sets: dict[str, dict[str, tuple[int, str]]] = {}
    for path in dict.fromkeys(file for name in paths for file in _files(name)):
        base, age = _rotation(path)
        sets.setdefault(base, {})[path] = age
    ordered = ((base, sorted(files, key=files.__getitem__)) for base, files in sorted(sets.items()))
    return [Source(base, tuple(files)) for base, files in ordered]


def _files(name: str) -> list[str]:
    if name == STDIN or not os.path.isdir(name):  # noqa: PTH112 - Path.is_dir raises where a folder may not be entered
        return [name]
    closed: list[str] = []
    found = [
        file
        for folder, below, files in os.walk(name, onerror=lambda error: closed.append(str(error.filename)))
        for file in _seen(folder, below, files)
    ]
    return sorted([*found, *closed])


def _seen(folder: str, below: list[str], files: list[str]) -> list[str]:
    """Return the files of one folder; hidden ones and hidden folders below it are left out."""
    below[:] = [child for child in below if not child.startswith(".")]
    paths = (str(Path(folder, file)) for file in files if not file.startswith("."))
    return [path for path in paths if _may_be_log(path)]


def _may_be_log(path: str) -> bool:
    """Tell whether it is a file that can be read, or one of which reading will say why it cannot."""
    try:
        return stat.S_ISREG(Path(path).stat().st_mode)
    except PermissionError:
        return True
    except OSError:
        return False


def _rotation(path: str) -> tuple[str, tuple[int, str]]:
    """Return the live file's name and a key that sorts older files first."""
    bare = path
    for suffix in _COMPRESSED:
        bare = bare.removesuffix(suffix)
    if match := _DATED.match(bare):
        return match["base"] + (match["end"] or ""), (-1, match["date"])
    if match := _NUMBERED_BEFORE.match(bare):
        return match["base"] + match["end"], (-int(match["age"]), "")
    if match := _NUMBERED.match(bare):
        return match["base"], (-int(match["age"]), "")
    return bare, (0, "")


def read_blocks(path: str) -> Iterator[bytes]:
    """Yield the content of one file in blocks of whole lines, decompressed; of a damaged file, what can be read.

    :raises InputError: where the file cannot be read to its end, naming it and the reason.
    """
    try:
        with _open(path) as stream:
            yield from whole_lines(stream)
    except _BROKEN as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{path}: {reason.lower() if reason else 'cannot be read'}") from error


def whole_lines(stream: BinaryIO, size: int = BLOCK) -> Iterator[bytes]:
    """Yield what `stream` holds in blocks that end with a line's end; a monstrous line is cut.

    What was read before an error comes before the error.
    """
    rest = b""
    failure: Exception | None = None
    while failure is None:
        chunk, failure = _fill(stream, size)
        if not chunk:
            break
        cut = chunk.rfind(b"\n") + 1
        if not cut and len(rest) + len(chunk) < _MAX_LINE:
            rest += chunk
            continue
        cut = cut or len(chunk)
        yield rest + chunk[:cut]
        rest = chunk[cut:]
    if rest:
        yield rest
    if failure is not None:
        raise failure


def _fill(stream: BinaryIO, size: int) -> tuple[bytes, Exception | None]:
    """Return the next `size` bytes, fewer at the end; and the error that ended them."""
    parts: list[bytes] = []
    held = 0
    try:
        while held < size and (part := stream.read1(size - held)):  # type: ignore[attr-defined]  # files, gzip and zstd have it
            parts.append(part)
            held += len(part)
    except _BROKEN as error:
        return b"".join(parts), error
    return b"".join(parts), None


def is_plain(path: str) -> bool:
    """Tell whether the file can be read at any offset: a regular file, not compressed."""
    if path == STDIN or not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises where a folder may not be entered
        return False
    try:
        with Path(path).open("rb") as stream:
            head = stream.read(_HEAD)
            return not (head.startswith((_GZIP_MAGIC, _ZSTD_MAGIC, *_UNREAD_MAGIC)) or head[_TAR_AT] == _TAR_MAGIC)
    except OSError:
        return False


def read_range(path: str, start: int, stop: int) -> bytes:
    """Return the lines of a plain file that begin at an offset from `start` to before `stop`."""
    with Path(path).open("rb") as stream:
        if start:
            stream.seek(start - 1)
            start += len(stream.readline(stop - start + 1)) - 1
        if start >= stop:
            return b""
        block = stream.read(stop - start)
        return block if block.endswith(b"\n") else block + stream.readline(_MAX_LINE)


@contextmanager
def _open(path: str) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed; standard input is left open."""
    if path == STDIN:
        yield _decompressed(sys.stdin.buffer)
        return
    with Path(path).open("rb") as stream:
        yield _decompressed(stream)


def _decompressed(stream: BinaryIO) -> BinaryIO:
    buffered = stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream)  # type: ignore[type-var]
    magic = buffered.peek(_HEAD)[:_HEAD]
    if magic.startswith(_GZIP_MAGIC):
        return _no_archive(gzip.GzipFile(fileobj=buffered))
    if magic.startswith(_ZSTD_MAGIC):
        return _no_archive(io.BufferedReader(_Zstd(buffered)))
    for start, name in _UNREAD_MAGIC.items():
        if magic.startswith(start):
            raise OSError(f"compressed with {name}, which is not read; decompress it first (gzip and zstd are read)")
    return _no_archive(buffered)


def _no_archive(stream: Peekable) -> BinaryIO:
    """Refuse a tar archive: its files are several logs, and would be read as one."""
    if stream.peek(_HEAD)[_TAR_AT] == _TAR_MAGIC:
        raise OSError("a tar archive, which is not read; unpack it first")
    return cast("BinaryIO", stream)


class _Zstd(io.RawIOBase):
    """The frames of a zstd file unpacked; unlike the library's own reader it tells where the last one is cut short."""

    def __init__(self, packed: BinaryIO) -> None:
        super().__init__()
        self._packed = packed
        self._rest = b""
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._unpacked = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: Buffer, /) -> int:
        while not self._unpacked:
            packed = self._rest or self._packed.read(_ZSTD_STEP)
            if not packed:
                if self._frame is not None:
                    raise EOFError("compressed file ended before the end of its last frame")
                return 0
            self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            self._unpacked = memoryview(self._frame.decompress(packed))
            self._rest = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        view = memoryview(target)
        size = min(len(view), len(self._unpacked))
        view[:size] = self._unpacked[:size]
        self._unpacked = self._unpacked[size:]
        return size
