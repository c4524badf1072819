"""Inputs: files, directories, stdin, compressed files and rotated sets, as blocks of whole lines."""

from __future__ import annotations

import gzip
import io
import re
import sys
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import zstandard

from kvdiag.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BLOCK: Final = 4 << 20
_MAX_LINE: Final = 64 << 20
STDIN: Final = "-"

_NUMBERED: Final = re.compile(r"(?P<base>.+?)\.(?P<age>\d{1,4})$")
_NUMBERED_BEFORE: Final = re.compile(r"(?P<base>.+?)\.(?P<age>\d{1,3})(?P<end>\.(?:log|txt|json|out))$")
_DATED: Final = re.compile(
    r"(?P<base>.+?)[-.](?P<date>20\d\d-?\d\d-?\d\d(?:[T_-]?[\d.:-]+)?)(?P<end>\.(?:log|txt|json|out))?$"
)
_COMPRESSED: Final = (".gz", ".zst", ".zstd")
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"


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
    path = Path(name)
    if name == STDIN or not path.is_dir():
        return [name]
    found = (
        p
        for p in path.rglob("*")
        if p.is_file() and not any(part.startswith(".") for part in p.relative_to(path).parts)
    )
    return sorted(map(str, found))


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
    """Yield the content of one file in blocks of whole lines, decompressed.

    :raises InputError: where the file cannot be read, naming it and the reason.
    """
    try:
        with _open(path) as stream:
            yield from whole_lines(stream)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{path}: {reason.lower() if reason else 'cannot be read'}") from error


def whole_lines(stream: BinaryIO, size: int = BLOCK) -> Iterator[bytes]:
    """Yield what `stream` holds in blocks that end with a line's end; a monstrous line is cut."""
    rest = b""
    while chunk := stream.read(size):
        cut = chunk.rfind(b"\n") + 1
        if not cut and len(rest) + len(chunk) < _MAX_LINE:
            rest += chunk
            continue
        cut = cut or len(chunk)
        yield rest + chunk[:cut]
        rest = chunk[cut:]
    if rest:
        yield rest


def is_plain(path: str) -> bool:
    """Tell whether the file can be read at any offset: a regular file, not compressed."""
    if path == STDIN or not Path(path).is_file():
        return False
    with Path(path).open("rb") as stream:
        return not stream.read(4).startswith((_GZIP_MAGIC, _ZSTD_MAGIC))


def read_range(path: str, start: int, stop: int) -> bytes:
    """Return the lines of a plain file that begin at an offset from `start` to before `stop`."""
    with Path(path).open("rb") as stream:
        if start:
            stream.seek(start - 1)
            start += len(stream.readline()) - 1
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
    magic = buffered.peek(4)[:4]
    if magic.startswith(_GZIP_MAGIC):
        return gzip.GzipFile(fileobj=buffered)  # type: ignore[return-value]
    if magic.startswith(_ZSTD_MAGIC):
        reader = zstandard.ZstdDecompressor().stream_reader(buffered, read_across_frames=True, closefd=False)
        return io.BufferedReader(reader)
    return buffered
