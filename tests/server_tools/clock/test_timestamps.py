"""Parsing and formatting of times."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.server_tools.clock.task import LATEST_MS
from routecodex.server_tools.clock.timestamps import (
    BadTimestamp,
    Zone,
    local_text,
    parse_timestamp,
    time_zone,
    utc_text,
)
from tests.server_tools.clock.world import START

GOOD = {
    "2026-01-21T20:30:00Z": 0,
    "2026-01-21T20:30:00z": 0,
    "2026-01-21t20:30:00Z": 0,
    "2026-01-21 20:30:00Z": 0,
    " 2026-01-21T20:30Z ": 0,
    "2026-01-21T12:30:00-08:00": 0,
    "2026-01-22T04:30:00+0800": 0,
    "2026-01-22T04:30:00+08": 0,
    "2026-01-22T02:00:00+05:30": 0,
    "2026-01-21T20:30:00-00:00": 0,
    "2026-01-21T20:30:00.250Z": 250,
    "2026-01-21T20:30:00,5Z": 500,
    "2026-01-21T20:30:00.123456789Z": 123,
    "2026-01-21T20:30:00.9999Z": 999,
}


@pytest.mark.parametrize(("text", "after"), GOOD.items(), ids=GOOD)
def test_times_with_an_offset_are_understood(text: str, after: int) -> None:
    assert parse_timestamp(text) == START + after


def test_a_leap_day_is_a_day() -> None:
    assert utc_text(parse_timestamp("2028-02-29T00:00:00Z")) == "2028-02-29T00:00:00.000Z"


BAD = {
    "2026-01-21T20:30:00": "due_at_without_offset",
    "2026-01-21 20:30": "due_at_without_offset",
    "2026-01-21": "due_at_without_offset",
    "1769027400000": "due_at_is_a_number",
    "1769027400.5": "due_at_is_a_number",
    "1.7E+12": "due_at_is_a_number",
    "-1": "due_at_is_a_number",
    "20260121": "due_at_is_a_number",
    "2026-02-29T00:00:00Z": "due_at_invalid",
    "2026-13-01T00:00:00Z": "due_at_invalid",
    "2026-01-32T00:00:00Z": "due_at_invalid",
    "2026-01-21T24:00:01Z": "due_at_invalid",
    "2026-06-30T23:59:60Z": "due_at_invalid",
    "2026-01-21T20:30:00+25:00": "due_at_invalid",
    "0000-01-01T00:00:00Z": "due_at_invalid",
    "1969-12-31T23:59:59Z": "due_at_invalid",
    "0001-01-01T00:00:00+14:00": "due_at_invalid",
    "9999-12-31T23:59:59-14:00": "due_at_invalid",
    "２０２６-01-21T20:30:00Z": "due_at_invalid",
    "tomorrow": "due_at_invalid",
    "in 5 minutes": "due_at_invalid",
    "20:30:00Z": "due_at_invalid",
    "2026-W04-3T20:30:00Z": "due_at_invalid",
    "2026-01-21T20:30:00Z and more": "due_at_invalid",
    "": "due_at_invalid",
}


@pytest.mark.parametrize(("text", "code"), BAD.items(), ids=BAD)
def test_anything_else_is_refused_with_the_reason(text: str, code: str) -> None:
    with pytest.raises(BadTimestamp) as caught:
        parse_timestamp(text)
    assert caught.value.code == code


def test_the_refusals_say_what_to_write_instead() -> None:
    messages = []
    for text in ["2026-01-21T20:30:00", "1769027400000"]:
        with pytest.raises(BadTimestamp) as caught:
            parse_timestamp(text)
        messages.append(str(caught.value))
    form = "use ISO 8601 with an offset, like 2026-01-21T20:30:00-08:00 or 2026-01-22T04:30:00Z"
    assert messages == [
        f"'2026-01-21T20:30:00' has no offset from UTC; {form}",
        f"'1769027400000' is a bare number, not a time; {form}",
    ]


@given(st.integers(0, LATEST_MS), st.sampled_from(["UTC", "Asia/Shanghai", "America/New_York"]))
def test_what_is_written_is_read_again(moment: int, name: str) -> None:
    assert parse_timestamp(utc_text(moment)) == moment
    # Before 1972 some zones had offsets with seconds, which ISO 8601 cannot write.
    recent = max(moment, 10**11)
    assert parse_timestamp(local_text(recent, Zone(name, ZoneInfo(name)))) == recent


def test_local_time_follows_the_zone() -> None:
    zones = [Zone(name, ZoneInfo(name)) for name in ("Asia/Shanghai", "America/Los_Angeles")]
    assert [local_text(START, zone) for zone in zones] == [
        "2026-01-22T04:30:00.000+08:00",
        "2026-01-21T12:30:00.000-08:00",
    ]


def test_the_zone_is_that_of_the_environment_then_of_the_machine_then_utc(tmp_path: Path) -> None:
    link = tmp_path / "localtime"
    link.symlink_to("/nowhere/zoneinfo/Europe/Madrid")
    missing = str(tmp_path / "missing")
    assert [
        time_zone({"TZ": "Asia/Shanghai"}, localtime=str(link)),
        time_zone({"TZ": ":Asia/Shanghai"}, localtime=str(link)),
        time_zone({}, localtime=str(link)),
        time_zone({"TZ": "No/Such"}, localtime=str(link)),
        time_zone({"TZ": "../etc/passwd"}, localtime=missing),
        time_zone({}, localtime=missing),
    ] == [
        *[Zone("Asia/Shanghai", ZoneInfo("Asia/Shanghai"))] * 2,
        *[Zone("Europe/Madrid", ZoneInfo("Europe/Madrid"))] * 2,
        *[Zone("UTC", UTC)] * 2,
    ]
