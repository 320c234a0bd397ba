"""Reads a limit as it is written: `$20/day`, `60 requests/60s`, `2M tokens/week`.

A word is a calendar period, a number is a rolling window. Amounts are exact integers: money in 10⁻⁹ USD,
everything else in units.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Literal, cast

from msgspec import Struct

LimitUnit = Literal["usd", "requests", "tokens", "input", "output", "uncached"]
CalendarPeriod = Literal["minute", "hour", "day", "week", "month"]

NANO_USD = 1_000_000_000
LIMIT_FIX = 'write AMOUNT/WINDOW, as in "$20/day", "60 requests/60s" or "2M tokens/week"'

_LIMIT = re.compile(
    r"(?P<money>\$)?\s*(?P<number>[0-9]{1,15}(?:\.[0-9]{1,9})?)(?P<factor>[kM])?"
    r"(?:\s*(?P<unit>requests?|tokens?|input|output|uncached))?\s*/\s*"
    r"(?:(?P<period>minute|hour|day|week|month)|(?P<count>[0-9]{1,9})(?P<letter>[smhd]))\Z"
)
_WINDOW = re.compile(r"(?:minute|hour|day|week|month|[0-9]{1,9}[smhd])\Z")
_AMOUNT = re.compile(
    r"(?P<money>\$)?\s*(?P<minus>-)?\s*(?P<whole>[0-9]+)(?:\.(?P<decimals>[0-9]+))?(?P<factor>[kM])?"
    r"\s*(?P<unit>[A-Za-z]*)\Z"
)
_UNITS = ("requests", "request", "tokens", "token", "input", "output", "uncached")
_FACTORS = {None: 1, "k": 1000, "M": 1_000_000}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SINGULARS = {"request": "requests", "token": "tokens"}
_MOST_USD = 1_000_000_000
_MOST_UNITS = 1_000_000_000_000_000
_LONGEST_WINDOW = 366 * 86_400


class LimitText(Struct, frozen=True):
    """A limit that was read: so many units in a calendar period, or in a rolling window of `seconds`."""

    unit: LimitUnit
    amount: int
    """Units; money in 10⁻⁹ USD."""
    period: CalendarPeriod | None = None
    seconds: int = 0

    @property
    def maximum(self) -> float | int:
        """The amount for people and JSON: USD as a decimal number, anything else as a whole one."""
        return self.amount / NANO_USD if self.unit == "usd" else self.amount


def parse_limit(text: str) -> LimitText | str:
    """Return the limit that a text states, or the reason why it states none."""
    found = _LIMIT.match(text.strip())
    if found is None or bool(found["money"]) == bool(found["unit"]):
        return _reason(text)
    number = Decimal(found["number"]) * _FACTORS[found["factor"]]
    exact = number * NANO_USD if found["money"] else number
    if exact != exact.to_integral_value():
        return "is not a whole number of units"
    if number <= 0:
        return "allows nothing"
    if number > (_MOST_USD if found["money"] else _MOST_UNITS):
        return "is more than can be counted"
    unit = "usd" if found["money"] else _SINGULARS.get(found["unit"], found["unit"])
    if found["period"]:
        return LimitText(cast("LimitUnit", unit), int(exact), cast("CalendarPeriod", found["period"]))
    seconds = int(found["count"]) * _SECONDS[found["letter"]]
    if not 1 <= seconds <= _LONGEST_WINDOW:
        return "has a window that is not between 1 second and 366 days"
    return LimitText(cast("LimitUnit", unit), int(exact), None, seconds)


def _reason(text: str) -> str:
    """Return why a text is not a limit, as closely as it can be told."""
    amount, _, window = (part.strip() for part in text.strip().partition("/"))
    found = _AMOUNT.match(amount)
    if found is None or (found["money"] and found["unit"] and found["unit"] not in _UNITS):
        return "is not a limit"
    if found["minus"]:
        return "is negative"
    if not window:
        return "has no window"
    if not _WINDOW.match(window):
        known = "windows are minute, hour, day, week and month, and times such as 60s, 5h or 7d"
        return f'has the window "{window[:20]}"; {known}'
    if found["money"] and found["unit"]:
        return f"counts money and {found['unit']} at once"
    if not found["money"] and not found["unit"]:
        return f"does not say what it counts: write ${amount[:20]} for money, or {amount[:20]} requests"
    if found["unit"] and found["unit"] not in _UNITS:
        known = "a limit counts money ($), requests, tokens, input, output or uncached"
        return f'counts "{found["unit"][:20]}"; {known}'
    return "has more than 9 decimals" if len(found["decimals"] or "") > 9 else "is more than can be counted"
