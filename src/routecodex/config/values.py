"""The longest times that can be meant: past them a number is a slip, and some would overflow a clock.

A value that must not be seen: keys and tokens, from the configuration to the header they go into.
"""

from __future__ import annotations

import hmac

DAY_SECONDS = 86_400
DAY_MS = DAY_SECONDS * 1000
YEAR_HOURS = 365 * 24
YEAR_MS = 365 * DAY_MS


class Secret:
    """Holds a string that no repr, str, format or log line shows; `reveal` is the only way to it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself, for the one place that sends or compares it."""
        return self._value

    def matches(self, other: str) -> bool:
        """Whether `other` is the same value, in time that does not depend on where they differ."""
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
