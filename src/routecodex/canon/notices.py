"""Notices of one request: lines that the client is shown in a header, each once.

They are plain text: the header encodes them, the log does not.
"""

from __future__ import annotations

_LONGEST = 120


class Notices:
    """Lines shown to the client, each once, in the order they came up."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[str, None] | None = None

    def add(self, *lines: str) -> None:
        """Add lines; a line that is there already stays where it is."""
        if not lines:
            return
        if self._lines is None:
            self._lines = {}
        for line in lines:
            self._lines[line] = None

    def dropped(self, field: str, reason: str) -> None:
        """Add a line like `dropped top_k: chat has no such field`, on one line and bounded."""
        line = f"dropped {field}: {reason}"
        self.add("".join(sign if sign.isprintable() else "?" for sign in line)[:_LONGEST])

    def lines(self) -> tuple[str, ...]:
        """Return all lines."""
        return () if self._lines is None else tuple(self._lines)
