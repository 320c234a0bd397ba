from __future__ import annotations

_LIMIT = 120


class Notices:
    """Lines like `dropped top_k: chat has no such field`, each once, in the order they came up."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}

    def add(self, *lines: str) -> None:
        """Add lines as printable ASCII, cut to a length that fits a header."""
        for line in lines:
            self._lines["".join(char if " " <= char <= "~" else "?" for char in line)[:_LIMIT]] = None

    def dropped(self, field: str, reason: str) -> None:
        self.add(f"dropped {field}: {reason}")

    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines)
