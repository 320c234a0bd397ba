"""Tasks that come again: daily, weekly, or every so many minutes.

A day is 24 hours, since a due time carries an offset and no time zone. Occurrences that nobody was there for
are passed over, not made up for.
"""

from __future__ import annotations

import re

MINUTE_MS = 60_000
MOST_MINUTES = 525_600

_FIXED = {"daily": 24 * 60 * MINUTE_MS, "weekly": 7 * 24 * 60 * MINUTE_MS}
_EVERY = re.compile(r"every\s+0*([1-9][0-9]{0,5})\s+minutes?")


def normalize(text: str) -> str | None:
    """How a rhythm is stored; None for `none`; ValueError when it is no rhythm."""
    said = text.strip().lower()
    if said == "none":
        return None
    if said in _FIXED:
        return said
    match = _EVERY.fullmatch(said)
    if match is None or int(match[1]) > MOST_MINUTES:
        raise ValueError(
            f"{text[:80]!r} is no rhythm; use none, daily, weekly, or every N minutes "
            f"(N from 1 to {MOST_MINUTES})"
        )
    return f"every {match[1]} minutes"


def period_ms(rhythm: str) -> int:
    """The time from one occurrence to the next."""
    return _FIXED.get(rhythm) or int(rhythm.split()[1]) * MINUTE_MS


def first_after(due_ms: int, rhythm: str, *, moment_ms: int) -> int:
    """The first occurrence after both the given one and the moment."""
    period = period_ms(rhythm)
    steps = max(1, (moment_ms - due_ms) // period + 1)
    return due_ms + steps * period


def last_until(due_ms: int, rhythm: str, *, moment_ms: int) -> int:
    """The last occurrence that is not after the moment, or the given one when all are."""
    period = period_ms(rhythm)
    return due_ms + max(0, (moment_ms - due_ms) // period) * period
