"""Secret values, and the longest durations that settings accept."""

from __future__ import annotations

import hmac

DAY_SECONDS = 86_400
DAY_MS = DAY_SECONDS * 1000
YEAR_HOURS = 365 * 24
YEAR_MS = 365 * DAY_MS
"""A longer duration is a mistake, and some would overflow a clock."""


class Secret:
    """A key or token that repr, str, format and logs do not show; only `reveal` returns it.

    `source` is the environment variable or the file it came from, if any.
    """

    __slots__ = ("_value", "source")

    def __init__(self, value: str, source: str = "") -> None:
        self._value = value
        self.source = source

    def reveal(self) -> str:
        """Return the value, for the code that sends or compares it."""
        return self._value

    def matches(self, other: str) -> bool:
        """Return whether `other` is the same value, in constant time."""
        return hmac.compare_digest(self._value.encode(), other.encode())

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.matches(other._value)

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __repr__(self) -> str:
        return "Secret('…')"

    __str__ = __repr__
