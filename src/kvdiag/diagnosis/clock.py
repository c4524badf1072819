"""Time stamps of logs, as seconds since the epoch.

vLLM prints neither year nor zone. Such stamps are placed in the year 2000 (`dated` tells them apart) until another
line of the same stream names the year. Two hosts' clocks are never subtracted from each other.
"""

from __future__ import annotations

import datetime
import re
from functools import lru_cache
from typing import Final

_UNDATED_YEAR: Final = 2000
_UNDATED_END: Final = datetime.datetime(2001, 2, 1, tzinfo=datetime.UTC).timestamp()
_ISO: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s*(Z|[+-]\d\d:?\d\d)?")
_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], start=1
    )
}


def dated(stamp: float) -> bool:
    """Tell whether the year of `stamp` is known."""
    return stamp >= _UNDATED_END


@lru_cache(maxsize=4096)
def iso_stamp(text: str) -> float | None:
    """Return the time that `text` starts with (`2026-11-09T10:00:33.5Z`, `2026-11-09 10:00:33,512`)."""
    match = _ISO.match(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    whole = _seconds(int(year), int(month), int(day), int(hour) * 3600 + int(minute) * 60 + int(second))
    if whole is None:
        return None
    return whole + (float(f"0.{fraction}") if fraction else 0.0) - _offset(zone)


def nearest_year(stamp: float, known: float) -> float:
    """Return an undated stamp in the year that brings it next to a dated one."""
    moment = datetime.datetime.fromtimestamp(stamp, datetime.UTC)
    second = moment.hour * 3600 + moment.minute * 60 + moment.second
    year = datetime.datetime.fromtimestamp(known, datetime.UTC).year
    placed = (_seconds(near, moment.month, moment.day, second) for near in (year - 1, year, year + 1))
    return min(
        (candidate for candidate in placed if candidate is not None), key=lambda at: abs(at - known), default=known
    )


@lru_cache(maxsize=4096)
def header_stamp(month_day: str, time: str) -> float | None:
    """Return the undated time of a vLLM header (`10-14`, `09:00:02`)."""
    return _clock(int(month_day[:2]), int(month_day[3:5]), time)


def syslog_stamp(month: str, day: str, time: str) -> float | None:
    """Return the undated time of a syslog header (`Dec`, `1`, `23:46:00`)."""
    return _clock(_MONTHS.get(month, 0), int(day), time)


def render(stamp: float | None) -> str | None:
    """Return `stamp` as RFC 3339 in UTC; without year and zone where no line named them."""
    if stamp is None:
        return None
    moment = datetime.datetime.fromtimestamp(stamp, datetime.UTC)
    if not dated(stamp):
        return moment.strftime("%m-%d %H:%M:%S")
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _clock(month: int, day: int, time: str) -> float | None:
    return _seconds(_UNDATED_YEAR, month, day, int(time[:2]) * 3600 + int(time[3:5]) * 60 + int(time[6:8]))


def _seconds(year: int, month: int, day: int, second: int) -> float | None:
    midnight = _midnight(year, month, day)
    return None if midnight is None else midnight + second


@lru_cache(maxsize=4096)
def _midnight(year: int, month: int, day: int) -> float | None:
    try:
        return datetime.datetime(year, month, day, tzinfo=datetime.UTC).timestamp()
    except ValueError:
        return None


def _offset(zone: str | None) -> float:
    if not zone or zone == "Z":
        return 0.0
    sign = -1 if zone[0] == "-" else 1
    return sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
