"""The router's own log: a line for each change of state, none for each request, never a prompt."""

from __future__ import annotations

import logging
import sys
import time
from typing import Literal

import msgspec

Format = Literal["text", "json"]


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's name
        """Return the time as RFC 3339, UTC, with milliseconds."""
        del datefmt
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON; an exception is named, its traceback kept on the same line."""
        line = {
            "ts": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def configure(form: Format) -> None:
    """Log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if form == "json" else logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])
