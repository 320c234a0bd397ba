"""Limits as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.config import LimitText, parse_limit

VALID = [
    ("$20/day", LimitText("usd", 20_000_000_000, "day"), 20.0),
    ("$0.05/5h", LimitText("usd", 50_000_000, None, 18_000), 0.05),
    ("$1k/month", LimitText("usd", 1000 * 10**9, "month"), 1000.0),
    ("$0.000000001/minute", LimitText("usd", 1, "minute"), 1e-9),
    ("60 requests/60s", LimitText("requests", 60, None, 60), 60),
    ("1 request/hour", LimitText("requests", 1, "hour"), 1),
    ("2M tokens/week", LimitText("tokens", 2_000_000, "week"), 2_000_000),
    ("1.5k tokens/7d", LimitText("tokens", 1500, None, 604_800), 1500),
    ("400k input/60s", LimitText("input", 400_000, None, 60), 400_000),
    ("10output/2m", LimitText("output", 10, None, 120), 10),
    (" 5 uncached / 24h ", LimitText("uncached", 5, None, 86_400), 5),
]


@pytest.mark.parametrize(("text", "limit", "maximum"), VALID)
def test_a_limit_is_an_amount_and_a_window(text: str, limit: LimitText, maximum: float) -> None:
    found = parse_limit(text)
    assert found == limit
    assert isinstance(found, LimitText)
    assert found.maximum == maximum


INVALID = [
    ("", "is not a limit"),
    ("20/day", "is not a limit"),
    ("$20", "is not a limit"),
    ("$20 tokens/day", "is not a limit"),
    ("-5 requests/day", "is not a limit"),
    ("$1e3/day", "is not a limit"),
    ("20 apples/day", "is not a limit"),
    ("$20/year", "is not a limit"),
    ("$20/days", "is not a limit"),
    ("$20/5w", "is not a limit"),
    ("$1.0000000001/day", "is not a limit"),
    ("0.5 requests/day", "is not a whole number of units"),
    ("$0/day", "allows nothing"),
    ("0 tokens/60s", "allows nothing"),
    ("$2000000000/day", "is more than can be counted"),
    ("999999999999999M tokens/day", "is more than can be counted"),
    ("$20/0s", "has a window that is not between 1 second and 366 days"),
    ("$20/367d", "has a window that is not between 1 second and 366 days"),
]


@pytest.mark.parametrize(("text", "reason"), INVALID)
def test_any_other_text_is_refused_with_the_reason(text: str, reason: str) -> None:
    assert parse_limit(text) == reason


@given(st.text(max_size=40))
def test_no_text_breaks_the_reader(text: str) -> None:
    assert isinstance(parse_limit(text), (LimitText, str))
