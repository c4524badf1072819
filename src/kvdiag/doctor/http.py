"""A small HTTP client for live checks: bounded answers, no proxies, one clear reason when nothing comes."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit

from kvdiag.errors import InputError

MOST_BYTES: Final = 64 << 20
"""No page that an engine serves is larger; more is not read."""


class NoAnswerError(Exception):
    """Nothing usable came back; the message says why in a few words."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. `clock_s` is the server's clock less ours, None where it sent no date (whole seconds)."""

    status: int
    body: bytes
    clock_s: float | None = None

    def json(self) -> dict[str, Any]:
        """Return the body as an object, empty where it is something else."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class Server:
    """One base URL."""

    url: str
    secure: bool
    host: str
    port: int
    prefix: str = ""
    api_key: str | None = None

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> Server:
        """Read a base URL; raise InputError where it is none."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError:
            raise InputError(f"{url!r} is not a URL; write it like http://host:8000") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InputError(f"{url!r} is not a URL; write it like http://host:8000")
        if parts.username or parts.password:
            raise InputError("put credentials into KVDIAG_API_KEY, not into the URL")
        secure = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/metrics").removesuffix("/v1")
        return cls(url, secure, parts.hostname, port or (443 if secure else 80), prefix, api_key)

    def get(self, path: str, timeout_s: float) -> Answer:
        """Return the answer to a GET, whatever its status; raise NoAnswerError where there is none."""
        return self._ask("GET", path, None, timeout_s, {})

    def post(self, path: str, body: dict[str, Any], timeout_s: float, headers: dict[str, str] | None = None) -> Answer:
        """Return the answer to a POST of JSON; `timeout_s` bounds each wait for bytes."""
        typed = {"Content-Type": "application/json", **(headers or {})}
        return self._ask("POST", path, json.dumps(body).encode(), timeout_s, typed)

    def _ask(self, method: str, path: str, body: bytes | None, timeout_s: float, headers: dict[str, str]) -> Answer:
        if self.api_key:
            headers = {"Authorization": f"Bearer {self.api_key}", **headers}
        connection = self._connection(timeout_s)
        try:
            connection.request(method, self.prefix + path, body, headers)
            response = connection.getresponse()
            date = response.headers.get("Date")
            clock = _clock(date, time.time())
            return Answer(response.status, response.read(MOST_BYTES), clock)
        except TimeoutError:
            raise NoAnswerError(f"no answer within {timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswerError(_reason(error)) from error
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self.secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)


def _clock(date: str | None, now: float) -> float | None:
    try:
        return parsedate_to_datetime(date or "").timestamp() - now
    except (ValueError, OverflowError):
        return None


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return f"not HTTP ({type(error).__name__})"
