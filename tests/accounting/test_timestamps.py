"""Times and durations of clients and keys."""

from __future__ import annotations

import pytest

from routecodex.accounting.timestamps import iso_time, parse_duration, parse_moment

NOW = 1_800_000_000.0


def test_a_time_is_shown_in_utc_to_the_second() -> None:
    assert iso_time(NOW + 0.999) == "2027-01-15T08:00:00Z"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("24h", 86_400), ("30d", 2_592_000), ("2w", 1_209_600), (" 0s ", 0)],
)
def test_a_duration_is_a_number_and_a_letter(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "1", "-1d", "1.5d", "1y", "1mo", "1d2h", "9999999999d"])
def test_anything_else_is_not_a_duration(text: str) -> None:
    assert parse_duration(text) is None


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("30d", NOW + 2_592_000),
        ("2027-01-31T00:00:00Z", 1801353600.0),
        ("2027-01-31", 1801353600.0),
        ("999999999w", None),
        ("9999-12-31T00:00:00Z", None),
        ("tomorrow", None),
    ],
)
def test_an_expiry_is_a_duration_from_now_or_a_time(text: str, moment: float | None) -> None:
    assert parse_moment(text, NOW) == moment
