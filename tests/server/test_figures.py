from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from routecodex.server.figures import rounded, stamp


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
    ("seconds", "text"), [(0.0, "0.0000"), (0.00134, "0.0013"), (1.5, "1.5000"), (59.99996, "60.0000")]
)
def test_a_duration_has_four_digits(seconds: float, text: str) -> None:
    assert rounded(seconds) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(-1.5)
@example(1e17)
@example(99999.99995)
def test_a_duration_is_the_number_that_round_gives(seconds: float) -> None:
    assert json.loads(rounded(seconds)) == round(seconds, 4)


@given(st.integers(0, 10**9), st.sampled_from([-1, 0, 1]))
def test_a_duration_in_the_middle_is_rounded_as_ever(ticks: int, beside: int) -> None:
    seconds = (ticks * 10 + 5) / 100_000 + beside * 1e-12
    assert json.loads(rounded(seconds)) == round(seconds, 4)


@given(st.floats(0, 1e5), st.floats(0, 100))
def test_a_duration_between_two_moments_is_rounded_as_ever(arrived: float, seconds: float) -> None:
    seconds = (arrived + seconds) - arrived
    assert json.loads(rounded(seconds)) == round(seconds, 4)
