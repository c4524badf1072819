"""What wraps, renames, cuts or colours a log changes nothing about what it proves."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from typing import TYPE_CHECKING, Final

import pytest
import zstandard

from kvdiag.diagnosis.lines import parse_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.diagnosis.conftest import Case, Classify

_HEADER = r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d-\d\d \d\d:\d\d:\d\d) (\[[^\]]+\])"
_PER_CASE: Final = 3


def _text(line: str) -> str:
    return line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _written_at(number: int, line: str) -> str:
    """Return the time that a wrapper notes: the line's own where it names one in full."""
    own = re.match(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)", line)
    second = "T".join(own.groups()) if own is not None else "2026-11-09T10:00:33"
    return f"{second}.{number:09d}Z"


def _docker(number: int, line: str) -> str:
    return json.dumps({"log": _text(line) + "\n", "stream": "stdout", "time": _written_at(number, line)})


def _docker_cut(number: int, line: str) -> str:
    text = _text(line)
    cut = len(text) // 3
    pieces = (text[:cut], text[cut:] + "\n")
    time = _written_at(number, line)
    return "\n".join(json.dumps({"log": piece, "stream": "stdout", "time": time}) for piece in pieces)


def _cri_cut(number: int, line: str) -> str:
    stamp, cut = _written_at(number, line), len(line) // 2
    return f"{stamp} stdout P {line[:cut]}\n{stamp} stdout F {line[cut:]}"


def _coloured(_number: int, line: str) -> str:
    access = re.match(r'(INFO|ERROR):( +\S+ - )"(.*?)" (.*)$', line)
    if access is not None:
        level, client, request, status = access.groups()
        return f'\x1b[32m{level}\x1b[0m:{client}"\x1b[1m{request}\x1b[0m" \x1b[91m{status}\x1b[0m'
    return re.sub(
        rf"(\([^)]*pid=\d+\)) {_HEADER}",
        lambda m: f"\x1b[0;36m{m[1]}\x1b[0;0m \x1b[33m{m[2]}\x1b[0m \x1b[90m{m[3]}\x1b[0m \x1b[90m{m[4]}\x1b[0m",
        line,
        count=1,
    )


def _as_json(_number: int, line: str) -> str:
    match = re.match(rf"(?:\([^)]*pid=(\d+)\) )?{_HEADER} ?(.*?)\r?$", _text(line))
    if match is None:
        return line
    pid, level, stamp, _, message = match.groups()
    record = {"asctime": f"2026-{stamp},671", "levelname": level, "name": "vllm.x", "process": int(pid or 7)}
    return json.dumps({**record, "message": message, "vllm_process_name": "Worker"})


LINE_BY_LINE: Final[dict[str, Callable[[int, str], str]]] = {
    "docker json-file": _docker,
    "docker json-file, cut records": _docker_cut,
    "fluent-bit": lambda _, line: json.dumps({"log": _text(line) + "\n", "kubernetes": {"pod_name": "p-1"}}),
    "cri": lambda number, line: f"{_written_at(number, line)} stdout F {line}",
    "cri, cut lines": _cri_cut,
    "kubectl --timestamps": lambda number, line: f"{_written_at(number, line)} {line}",
    "kubectl --prefix": lambda _, line: f"[pod/vllm-7c9d5-abcde/vllm] {line}",
    "stern": lambda _, line: f"vllm-7c9d5-abcde vllm {line}",
    "compose": lambda _, line: f"engine-1  | {line}",
    "journald": lambda _, line: f"Dec 01 23:46:00 node7 vllm[8801]: {line}",
    "colours": _coloured,
    "colours, escape spelled out": lambda number, line: _coloured(number, line).replace("\x1b", "#033"),
    "colours, escape dropped": lambda number, line: _coloured(number, line).replace("\x1b", ""),
    "journald json, colours": lambda number, line: json.dumps(
        {"MESSAGE": list(_coloured(number, line).encode("utf-8", "surrogateescape")), "_PID": "8801"}
    ),
    "journald short-precise": lambda _, line: f"Dec 01 23:46:00.123456 node7 vllm[8801]: {line}",
    "journald short-unix": lambda _, line: f"1764632760.123456 node7 vllm[8801]: {line}",
    "ts -i": lambda _, line: f"[2025-12-01 23:46:00] {line}",
    "tabs": lambda _, line: f"vllm-7c9d5-abcde\tvllm\t{line}",
    "journald short-full": lambda _, line: f"Mon 2025-12-01 23:46:00 CET node7 vllm[8801]: {line}",
    "rfc 5424": lambda number, line: f"<14>1 {_written_at(number, line)} node7 vllm 8801 - - {line}",
    "cloudwatch": lambda number, line: f"{_written_at(number, line)} vllm-prefill/vllm/8d0f {line}",
    "logcli": lambda number, line: f'{_written_at(number, line)} {{container="vllm", pod="vllm-0"}} {line}',
    "json over several lines": lambda _, line: f'  "textPayload": {json.dumps(_text(line))},',
    "json formatter": _as_json,
    "VLLM_LOGGING_PREFIX": lambda _, line: re.sub(_HEADER, r"node-7 gpu0 \1 \2 \3", line, count=1),
    "crlf": lambda _, line: line.rstrip("\r") + "\r",
}


def _each_line(content: bytes, change: Callable[[int, str], str]) -> bytes:
    lines = content.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n")
    changed = "\n".join(change(number, line) for number, line in enumerate(lines))
    return (changed + "\n").encode("utf-8", "surrogateescape")


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _rotated(folder: Path, number: int, content: bytes) -> list[Path]:
    lines = content.split(b"\n")
    third = len(lines) // 3
    live = folder / f"{number}.log"
    return [
        _write(live, b"\n".join(lines[2 * third :])),
        _write(live.with_name(f"{live.name}.2.gz"), gzip.compress(b"\n".join(lines[:third]) + b"\n")),
        _write(live.with_name(f"{live.name}.1"), b"\n".join(lines[third : 2 * third]) + b"\n"),
    ]


_GLUED: Final = re.compile(
    rb"^(\(\w+ pid=\d+\) \w+ [\d :-]{14} \[[^\]]+\] (?:Declining|Releasing|Potentially|Skipping|Engine 0|KV Transfer)"
    rb"[^\"'`\r\n]*)\n(?=\(\w+ pid=\d+\) \w+ \d\d-\d\d )",
    re.MULTILINE,
)

WHOLE_FILES: Final[dict[str, Callable[[Path, int, bytes], list[Path]]]] = {
    "gzip": lambda folder, n, content: [_write(folder / f"{n}.log.gz", gzip.compress(content))],
    "zstd": lambda folder, n, content: [_write(folder / f"{n}.log.zst", zstandard.compress(content))],
    "neutral names": lambda folder, n, content: [_write(folder / f"{'abcdefgh'[n]}.log", content)],
    "rotation": _rotated,
    "records glued together": lambda folder, n, content: [_write(folder / f"{n}.log", _GLUED.sub(rb"\1", content))],
}
CHANGES: Final = (*LINE_BY_LINE, *WHOLE_FILES)


def is_plain(path: Path) -> bool:
    """Tell whether a log is stock text, alone in its file: nothing wraps it yet."""
    if path.is_dir():
        return False
    content = path.read_bytes()
    if not content or b"\0" in content or content.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"# ", b"{")):
        return False
    lines = content.decode("utf-8", "replace").split("\n")[:40]
    return not any(
        parse_line(line).label or (line.startswith(("{", "\x1b", "20")) and "T" in line[:20]) for line in lines
    )


@pytest.mark.parametrize("turn", range(_PER_CASE))
def test_a_changed_case_keeps_its_diagnosis(case: Case, turn: int, tmp_path: Path, classify_files: Classify) -> None:
    names = [path.name.partition(".")[0] for path in case.inputs]
    if not all(map(is_plain, case.inputs)) or len(set(names)) < len(names) or case.expected["cause"] == "inconclusive":
        return
    change = CHANGES[(sum(case.folder.name.encode()) + turn * 7) % len(CHANGES)]

    changed = []
    for number, path in enumerate(case.inputs):
        content = path.read_bytes()
        if change in WHOLE_FILES:
            changed += WHOLE_FILES[change](tmp_path, number, content)
        else:
            changed.append(_write(tmp_path / path.name, _each_line(content, LINE_BY_LINE[change])))
    report, code = classify_files(changed)

    cited = change in LINE_BY_LINE and "cut" not in change
    assert (change, case.missed(report, code, evidence=cited)) == (change, [])


_CALLERS_ID: Final = rb"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"


def test_callers_ids_may_end_like_a_suffix_where_engines_add_none(
    case: Case, tmp_path: Path, classify_files: Classify
) -> None:
    contents = {path.name: path.read_bytes() for path in case.inputs if path.is_file()}
    ids = {name for content in contents.values() for name in re.findall(rb"chatcmpl-" + _CALLERS_ID, content)}
    if not ids or len(contents) < len(case.inputs):
        return

    def rename(match: re.Match[bytes]) -> bytes:
        return b"run-%08x" % zlib.crc32(match[1]) if match[1] in ids else match[0]

    changed = [
        _write(tmp_path / name, re.sub(_CALLERS_ID + rb"(?:-[0-9a-f]{8})?(?![0-9a-f-])", rename, content))
        for name, content in contents.items()
    ]
    report, code = classify_files(changed)

    assert case.missed(report, code) == []
