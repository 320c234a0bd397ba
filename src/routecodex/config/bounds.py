"""The longest times that can be meant: past them a number is a slip, and some would overflow a clock."""

from __future__ import annotations

__all__ = ["DAY_MS", "DAY_SECONDS", "YEAR_HOURS", "YEAR_MS"]

DAY_SECONDS = 86_400
DAY_MS = DAY_SECONDS * 1000
YEAR_HOURS = 365 * 24
YEAR_MS = 365 * DAY_MS
