from __future__ import annotations

_LIMIT = 120


class Notices:
    """Lines like `dropped top_k: chat has no such field`, each once, in the order they came up."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}

    def dropped(self, what: str, why: str) -> None:
        line = f"dropped {what}: {why}"
        self._lines["".join(sign if " " <= sign <= "~" else "?" for sign in line)[:_LIMIT]] = None

    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines)
