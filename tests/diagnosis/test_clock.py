"""Time stamps, with and without year and zone."""

from __future__ import annotations

import datetime

import pytest

from kvdiag.diagnosis import clock


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("2026-11-09T10:00:33.500000123Z stdout F x", "2026-11-09T10:00:33Z"),
        ("2026-11-09 10:00:33,512", "2026-11-09T10:00:33Z"),
        ("2026-11-09T10:00:33+02:00", "2026-11-09T08:00:33Z"),
        ("2026-11-09T10:00:33-0530", "2026-11-09T15:30:33Z"),
        ("2026-13-09T10:00:33Z", None),
        ("10:00:33", None),
    ],
)
def test_iso_stamps_are_read_in_utc(text: str, rendered: str | None) -> None:
    assert clock.render(clock.iso_stamp(text)) == rendered


def test_a_header_without_a_year_is_known_to_have_none() -> None:
    stamp = clock.header_stamp("02-29", "23:59:59")

    assert stamp is not None
    assert not clock.dated(stamp)
    assert clock.render(stamp) == "02-29 23:59:59"


@pytest.mark.parametrize(("day", "time"), [("00-10", "10:00:00"), ("02-30", "10:00:00"), ("13-01", "10:00:00")])
def test_a_day_that_does_not_exist_has_no_stamp(day: str, time: str) -> None:
    assert clock.header_stamp(day, time) is None


def test_syslog_stamps_name_the_month() -> None:
    assert clock.render(clock.syslog_stamp("Dec", "1", "23:46:00")) == "12-01 23:46:00"
    assert clock.syslog_stamp("Foo", "1", "23:46:00") is None


def test_stamps_of_this_century_are_dated() -> None:
    assert clock.dated(datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC).timestamp())


@pytest.mark.parametrize(
    ("day", "known", "placed"),
    [
        ("12-31", "2027-01-01T00:00:05Z", "2026-12-31T09:00:00Z"),
        ("01-01", "2026-12-31T23:59:55Z", "2027-01-01T09:00:00Z"),
        ("11-30", "2026-11-29T10:00:00Z", "2026-11-30T09:00:00Z"),
        ("02-29", "2026-02-28T10:00:00Z", "2026-02-28T10:00:00Z"),
    ],
)
def test_a_stamp_without_a_year_goes_next_to_one_that_has_it(day: str, known: str, placed: str) -> None:
    undated, dated = clock.header_stamp(day, "09:00:00"), clock.iso_stamp(known)
    assert undated is not None
    assert dated is not None
    assert clock.render(clock.nearest_year(undated, dated)) == placed
