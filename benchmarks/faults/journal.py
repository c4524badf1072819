"""The logs of one scenario: cut out of what engines write for many, and cleared of this machine's traces."""

from __future__ import annotations

import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvdiag.localstack.stack import model_cache

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvdiag.localstack import Service

_STARTED: Final = "Application startup complete."
_BEGINS: Final = re.compile(r"Triton is installed|\[api_utils\.py:\d+\]|`vllm\.entrypoints\.openai\.api_server`")
_TELLING: Final = re.compile(
    r"non-default args|Creating v1 connector|Bidirectional KV transfer|KV cache size|NIXL|Hybrid Memory"
    r"|Started server process|Application startup|kvdiag|Chunked prefill|ERROR|Error"
)
_CHATTY: Final = re.compile(r"GET /(health|metrics) ")
_LIBRARIES: Final = "/opt/vllm/lib/python3.11/site-packages"


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
    for path, shown in _shown(folder):
        text = text.replace(path, shown)
    return "".join(_telling_lines(text.splitlines(keepends=True)))


def _shown(folder: Path) -> list[tuple[str, str]]:
    root = Path(__file__).parents[2]
    found = [
        (sysconfig.get_path("purelib"), _LIBRARIES),
        (str(model_cache()), "/models"),
        (str(folder), "/var/log/kvdiag"),
        (str(root), "/opt/kvdiag"),
    ]
    return [(path, shown) for path, shown in found if path]


def _telling_lines(lines: Iterable[str]) -> Iterator[str]:
    starting = False
    for line in lines:
        starting = starting or bool(_BEGINS.search(line)) or "non-default args" in line
        if _STARTED in line:
            starting = False
            yield line
        elif (_TELLING.search(line) and "Setting UCX" not in line) if starting else not _CHATTY.search(line):
            yield line
