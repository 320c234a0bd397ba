"""Counts by name: whose turn it is in a pool."""

from __future__ import annotations


class RoundRobin:
    """Gives each name 0, 1, 2, …; the names are pools and targets of the configuration, so they are few."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        count = self._counts.get(name, 0)
        self._counts[name] = count + 1
        return count

    def peek(self, name: str) -> int:
        """The number that comes next; it is still to be given."""
        return self._counts.get(name, 0)
