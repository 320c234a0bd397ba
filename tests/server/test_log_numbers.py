from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from routecodex.server.log_numbers import duration, stamp, ticks


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000.125, "2023-11-14T22:13:20.125Z"),
        (1_700_000_000.999, "2023-11-14T22:13:20.999Z"),
        (1_700_000_001.0078125, "2023-11-14T22:13:21.007Z"),
    ],
)
def test_a_moment_is_told_in_utc_to_the_millisecond(at: float, text: str) -> None:
    assert stamp(at) == text


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.0, 0), (0.00134, 13), (1.5, 15_000), (59.99996, 600_000), (99_999.9999, 999_999_999)],
)
def test_a_duration_is_told_in_ticks(seconds: float, expected: int) -> None:
    assert ticks(seconds) == expected


@pytest.mark.parametrize("seconds", [-1.5, -1e-9, 1e17, 100_000.0, 0.00005, float("inf"), float("nan")])
def test_a_duration_that_is_none_or_lies_in_the_middle_is_not_told(seconds: float) -> None:
    assert ticks(seconds) == -1


@pytest.mark.parametrize(
    ("expected", "text"), [(0, b"0.0000"), (13, b"0.0013"), (15_000, b"1.5000"), (123_456_789, b"12345.6789")]
)
def test_a_duration_has_four_digits(expected: int, text: bytes) -> None:
    assert duration(expected) == text


def as_number(seconds: float) -> float:
    expected = ticks(seconds)
    return round(seconds, 4) if expected < 0 else float(duration(expected))


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(99999.99995)
def test_a_duration_is_the_number_that_round_gives(seconds: float) -> None:
    assert as_number(seconds) == round(seconds, 4)


@given(st.integers(0, 10**9), st.sampled_from([-1, 0, 1]))
def test_a_duration_in_the_middle_is_rounded_as_ever(ticks: int, beside: int) -> None:
    seconds = (ticks * 10 + 5) / 100_000 + beside * 1e-12
    assert as_number(seconds) == round(seconds, 4)


@given(st.floats(0, 1e5), st.floats(0, 100))
def test_a_duration_between_two_moments_is_rounded_as_ever(arrived: float, seconds: float) -> None:
    seconds = (arrived + seconds) - arrived
    assert as_number(seconds) == round(seconds, 4)
