"""Limits: what they count, how they are identified, how they are shown."""

from __future__ import annotations

import pytest

from routecodex.accounting.limits import Limit, by_target, key_limits, make_limits
from routecodex.accounting.windows import CalendarWindow, RollingWindow
from routecodex.canon.events import Usage
from routecodex.config import LimitConfig


def limit(text: str, owner: str = "client:laptop", **fields: object) -> Limit:
    return make_limits(owner, [LimitConfig(limit=text, **fields)])[0]  # type: ignore[arg-type]  # the fields of a row


@pytest.mark.parametrize(
    ("unit", "amount"),
    [("input", 100), ("output", 20), ("tokens", 120), ("uncached", 60), ("requests", 0)],
)
def test_units_count_their_part_of_an_answer(unit: str, amount: int) -> None:
    usage = Usage(input=100, output=20, cache_read=60)
    assert limit(f"5 {unit}/day").used_by(usage, 123) == amount


def test_money_counts_the_cost_and_an_unknown_one_as_nothing() -> None:
    usage = Usage(input=100, output=20)
    assert limit("$5/day").used_by(usage, 123) == 123
    assert limit("$5/day").used_by(usage, None) == 0


def test_counts_that_contradict_each_other_are_not_negative() -> None:
    usage = Usage(input=10, output=-5, cache_read=60)
    assert limit("5 uncached/day").used_by(usage, 0) == 0
    assert limit("5 tokens/day").used_by(usage, 0) == 10


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("$5/minute", "budget_exceeded"),
        ("60 requests/60s", "rate_limit_exceeded"),
        ("2M tokens/hour", "rate_limit_exceeded"),
        ("2M tokens/1h", "rate_limit_exceeded"),
        ("2M tokens/61m", "budget_exceeded"),
        ("5 requests/day", "budget_exceeded"),
    ],
)
def test_money_and_long_windows_are_budgets(text: str, code: str) -> None:
    assert limit(text).code == code


def test_a_limit_that_is_raised_keeps_its_use() -> None:
    assert limit("$20/day").digest == limit("$30/day").digest
    assert limit("60 requests/60s").digest == limit("70 requests/1m", warn_at=0.5).digest


@pytest.mark.parametrize(
    "other",
    [
        limit("$20/day", owner="client:ci"),
        limit("$20/day", owner="team:laptop"),
        limit("$20/week"),
        limit("$20/24h"),
        limit("20 requests/day"),
        limit("$20/day", timezone="Asia/Shanghai"),
        limit("$20/day", models=("claude-*",)),
    ],
)
def test_limits_that_count_something_else_are_told_apart(other: Limit) -> None:
    assert other.digest != limit("$20/day").digest


def test_two_limits_on_the_same_use_count_each_for_themselves() -> None:
    soft, hard = make_limits("team:core", [LimitConfig(limit="$5/day"), LimitConfig(limit="$9/day")])
    assert soft.digest != hard.digest


def test_the_text_is_shown_as_written() -> None:
    assert [limit(text).text for text in ("$20/day", " 2M  tokens / week ")] == ["$20/day", "2M tokens/week"]
    assert limit("$20/day").name == "client laptop $20/day"
    assert limit("$5/day", models=("claude-opus-*",)).name == "client laptop $5/day for claude-opus-*"
    assert limit("$20/day").describe(3_210_000_000) == "$3.21"
    assert limit("$20/day").show(3_210_000_000) == 3.21
    assert limit("5 requests/day").describe(3) == "3"


def test_words_are_calendar_periods_and_numbers_are_rolling_windows() -> None:
    day, hours = limit("$20/day", timezone="Asia/Shanghai").window, limit("$20/24h").window
    assert isinstance(day, CalendarWindow)
    assert (day.period, str(day.zone)) == ("day", "Asia/Shanghai")
    assert isinstance(hours, RollingWindow)
    assert hours.seconds == 86_400


def test_models_narrow_a_limit_to_their_targets() -> None:
    opus = limit("$5/day", models=("claude-opus-*", "glm.*"))
    every = limit("$5/day")
    assert by_target((opus, every), "claude", "claude-opus-4-8") == (opus, every)
    assert by_target((opus, every), "glm", "glm-4.7") == (opus, every)
    assert by_target((opus, every), "claude", "claude-sonnet-5") == (every,)
    assert (opus.skips, every.skips) == (True, False)


def test_ways_to_deal_with_a_used_limit_are_read() -> None:
    rows = [limit("$5/5h", on_exceeded=action) for action in ("refuse", "wait", "route:cheap")]
    assert [(row.on_exceeded, row.route) for row in rows] == [
        ("refuse", ""),
        ("wait", ""),
        ("route", "cheap"),
    ]
    assert not limit("$5/5h", mode="shadow").enforced


def test_known_limits_of_a_provider_key_skip_it() -> None:
    rows = key_limits("glm", "primary", rpm=50, tpm=40_000, concurrent=5)
    assert [(row.owner, row.text, row.max, row.skips) for row in rows] == [
        ("key:glm.primary", "50 requests/60s", 50, True),
        ("key:glm.primary", "40000 tokens/60s", 40_000, True),
        ("key:glm.primary", "5 concurrent", 5, True),
    ]
