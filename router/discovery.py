"""Which engines there are: a static list, a file that is read again when it changes, names that resolve to many."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kvdiag.errors import InputError
from kvdiag.router.placement import Address

if TYPE_CHECKING:
    from pathlib import Path

    from kvdiag.events import Role

DNS: Final = "dns+"
"""Before a URL: every address behind its name is an engine."""
ROLES: Final[tuple[Role, ...]] = ("prefill", "decode")


class Discovery:
    """Lists engines by role; a source that fails keeps what it last said."""

    def __init__(self, static: dict[Role, tuple[str, ...]], file: Path | None) -> None:
        self._static = static
        self._file = file
        self._stamp: tuple[int, int] | None = None
        self._listed: dict[Role, tuple[str, ...]] = dict.fromkeys(ROLES, ())
        self._resolved: dict[str, tuple[Address, ...]] = {}

    def read(self) -> None:
        """Read the file if it changed.

        Raises:
            InputError: it cannot be read, or a line is wrong; what was read before stays.

        """
        if self._file is None:
            return
        try:
            stat = self._file.stat()
            stamp = stat.st_mtime_ns, stat.st_size
            if stamp != self._stamp:
                self._listed = _parse(self._file)
                self._stamp = stamp
        except OSError as error:
            raise InputError(f"engines file {self._file}: {error.strerror}") from error

    async def engines(self, role: Role) -> list[Address]:
        """Return the engines of a role as they are now."""
        found: list[Address] = []
        for url in (*self._static[role], *self._listed[role]):
            found += await self._resolve(url) if url.startswith(DNS) else Address.parse(url)
        return found

    async def _resolve(self, url: str) -> tuple[Address, ...]:
        addresses = Address.parse(url.removeprefix(DNS))
        named = addresses[0]
        try:
            infos = await asyncio.get_running_loop().getaddrinfo(named.host, named.port, type=socket.SOCK_STREAM)
        except OSError:
            return self._resolved.get(url, ())
        hosts = sorted({str(info[4][0]) for info in infos})
        self._resolved[url] = tuple(replace(address, host=host) for host in hosts for address in addresses)
        return self._resolved[url]


def check(url: str) -> None:
    """Raise InputError for a URL that names no engine."""
    Address.parse(url.removeprefix(DNS))


def _parse(file: Path) -> dict[Role, tuple[str, ...]]:
    listed: dict[Role, list[str]] = {role: [] for role in ROLES}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        role = next((role for role in ROLES if role == words[0]), None)
        if role is None or len(words) != 2:
            raise InputError(f"{file}:{number}: write `prefill URL` or `decode URL`, not {line.strip()!r}")
        try:
            check(words[1])
        except InputError as error:
            raise InputError(f"{file}:{number}: {error}") from error
        listed[role].append(words[1])
    return {role: tuple(urls) for role, urls in listed.items()}
