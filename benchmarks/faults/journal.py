"""The logs of one scenario: cut out of what engines write for many, and cleared of this machine's traces."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvdiag.localstack.stack import model_cache

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from kvdiag.localstack import Service

_STARTED: Final = "Application startup complete."
_BEGINS: Final = re.compile(r"Triton is installed|\[api_utils\.py:\d+\]|`vllm\.entrypoints\.openai\.api_server`")
_TELLING: Final = re.compile(
    r"non-default args|Creating v1 connector|Bidirectional KV transfer|KV cache size|NIXL|Hybrid Memory"
    r"|Started server process|Application startup|kvdiag|Chunked prefill|ERROR|Error"
)
_CHATTY: Final = re.compile(r"GET /(health|metrics) ")
_PLACE: Final = r"/[^\s\"':,()]*"
_SHOWN: Final = (
    (re.compile(_PLACE + "/site-packages/"), "/opt/vllm/lib/python3.11/site-packages/"),
    (re.compile(_PLACE + r"/lib/python3\.\d+/(?!site-packages)"), "/usr/lib/python3.11/"),
    (re.compile(_PLACE + "/src/kvdiag/"), "/opt/kvdiag/src/kvdiag/"),
    # Where the engines ran, which need not be where the logs were moved to.
    (re.compile(_PLACE + "/(?=engines/)"), "/var/log/kvdiag/"),
    (re.compile(r"(?<![^\s\"':,()])(?!/var/log/)" + _PLACE + r"/(?=\w+-events\.jsonl)"), "/var/log/kvdiag/"),
)
"""Places of libraries and what a log shows instead."""


@dataclass(frozen=True)
class Journal:
    """Where a scenario's logs begin."""

    service: Service
    offsets: dict[Path, int]

    @classmethod
    def of(cls, service: Service) -> Journal:
        """Note where an engine's logs end now."""
        return cls(service, {path: _size(path) for path in (service.log, _events(service))})

    def cut(self, folder: Path) -> None:
        """Write what has been logged since, behind the engine's last start-up lines."""
        for path, offset in self.offsets.items():
            written = path.read_bytes() if path.exists() else b""
            new = written[offset:].decode(errors="replace")
            if path == self.service.log:
                new = _last_start(written[:offset].decode(errors="replace")) + new
            if new:
                # Records of several lines end in CR LF: nothing may be translated.
                (folder / path.name).write_text(new, newline="")


def _events(service: Service) -> Path:
    return service.log.with_name(f"{service.name}-events.jsonl")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _last_start(text: str) -> str:
    """Return the lines of the last start, up to where requests begin."""
    begin = max(text.rfind("non-default args"), 0)
    begin = text.rfind("\n", 0, begin) + 1
    end = text.find(_STARTED, begin)
    return text[begin:] if end < 0 else text[begin : text.find("\n", end) + 1]


def tidy(text: str, folder: Path) -> str:
    """Return a log without start-up noise and health checks, and with nothing that tells of this machine."""
    text = text.replace(str(model_cache()), "/models").replace(str(folder), "/var/log/kvdiag")
    for path, shown in _SHOWN:
        text = path.sub(shown, text)
    return "".join(_telling_lines(text.splitlines(keepends=True)))


def _telling_lines(lines: Iterable[str]) -> Iterator[str]:
    starting = False
    for line in lines:
        starting = starting or bool(_BEGINS.search(line)) or "non-default args" in line
        if _STARTED in line:
            starting = False
            yield line
        elif (_TELLING.search(line) and "Setting UCX" not in line) if starting else not _CHATTY.search(line):
            yield line
