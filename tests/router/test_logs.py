from __future__ import annotations

import json
import logging

from kvdiag.router.logs import JsonFormatter


def test_a_record_is_one_json_line_whatever_it_says() -> None:
    error = ValueError("two\nlines")
    about = type(error), error, None
    record = logging.LogRecord("kvdiag.router", logging.WARNING, "f", 1, 'a "%s"', ("b\nc",), about)
    record.created, record.msecs = 0.25, 250.0
    line = JsonFormatter().format(record)
    assert "\n" not in line
    decoded = json.loads(line)
    assert decoded["message"] == 'a "b\nc"'
    assert decoded["ts"] == "1970-01-01T00:00:00.250Z"
    assert decoded["exception"].endswith("ValueError: two\nlines")
