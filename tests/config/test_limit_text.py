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


WINDOWS = "windows are minute, hour, day, week and month, and times such as 60s, 5h or 7d"
INVALID = [
    ("", "is not a limit"),
    ("$/day", "is not a limit"),
    ("20/day", "does not say what it counts: write $20 for money, or 20 requests"),
    ("$20", "has no window"),
    ("20", "has no window"),
    ("$20/", "has no window"),
    ("$20 tokens/day", "counts money and tokens at once"),
    ("-5 requests/day", "is negative"),
    ("$-5/day", "is negative"),
    ("$1e3/day", "is not a limit"),
    (
        "20 apples/day",
        'counts "apples"; a limit counts money ($), requests, tokens, input, output or uncached',
    ),
    ("$20/year", f'has the window "year"; {WINDOWS}'),
    ("$20/days", f'has the window "days"; {WINDOWS}'),
    ("$20/5w", f'has the window "5w"; {WINDOWS}'),
    ("$1.0000000001/day", "has more than 9 decimals"),
    ("99999999999999999 tokens/day", "is more than can be counted"),
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
