"""Days of time zones in terms of UTC."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.accounting.local_days import day_offsets

DAY, HOUR = 86_400, 3600
SPRING = 1_774_396_800
"""2026-03-25T00:00:00Z; four days later Europe's clocks go forward."""


def test_a_zone_without_changes_has_one_offset() -> None:
    offsets = day_offsets(ZoneInfo("Asia/Shanghai"), SPRING, SPRING + 90 * DAY)
    assert [offset for _, offset in offsets.steps] == [8 * HOUR]
    assert offsets.expression("hour") == "28800"
    assert offsets.broken_slots(HOUR, SPRING, None) == []


def test_a_change_of_clocks_is_found_to_the_hour() -> None:
    offsets = day_offsets(ZoneInfo("Europe/Oslo"), SPRING, SPRING + 300 * DAY)
    begins = [datetime.fromtimestamp(begin, UTC).isoformat() for begin, _ in offsets.steps[1:]]
    assert begins == ["2026-03-29T01:00:00+00:00", "2026-10-25T01:00:00+00:00"]
    assert [offset // HOUR for _, offset in offsets.steps] == [1, 2, 1]


def test_a_day_that_begins_at_half_past_breaks_an_hour() -> None:
    offsets = day_offsets(ZoneInfo("Asia/Kolkata"), SPRING, SPRING + 3 * DAY)
    expected = [SPRING + day * DAY + 18 * HOUR for day in range(3)]
    assert offsets.broken_slots(HOUR, SPRING, SPRING + 3 * DAY) == expected


ZONES = ["UTC", "Europe/Oslo", "Asia/Kolkata", "Asia/Kathmandu", "America/St_Johns", "Australia/Lord_Howe"]


@pytest.mark.parametrize("name", ZONES)
@given(at=st.integers(SPRING, SPRING + 400 * DAY))
def test_the_expression_names_the_local_day(name: str, at: int) -> None:
    zone = ZoneInfo(name)
    offsets = day_offsets(zone, SPRING, SPRING + 400 * DAY)
    connection = sqlite3.connect(":memory:")
    (slot,) = connection.execute(f"SELECT ({at} + {offsets.expression(str(at))}) / {DAY}").fetchone()
    connection.close()
    assert datetime(1970, 1, 1).date() + timedelta(days=slot) == datetime.fromtimestamp(at, zone).date()


@pytest.mark.parametrize("name", ZONES)
@given(hour=st.integers(SPRING // HOUR, SPRING // HOUR + 400 * 24))
def test_an_hour_is_broken_when_a_day_ends_in_it(name: str, hour: int) -> None:
    zone, begin = ZoneInfo(name), hour * HOUR
    offsets = day_offsets(zone, SPRING, SPRING + 401 * DAY)
    days = {datetime.fromtimestamp(at, zone).date() for at in (begin, begin + HOUR - 1)}
    assert (begin in offsets.broken_slots(HOUR, begin, begin + HOUR)) == (len(days) > 1)
