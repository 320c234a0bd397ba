"""Marks of user messages: a message with instructions is applied once, however often its client sends it.

A mark has three fields, `<text>:<count>:<turn>`: a digest of the user's text, the number of earlier messages
with the same text, and a digest of the client's id of the user turn, if it names one (Claude Code, Codex).
Positions are not part of it: agents shorten, compact and edit their history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from msgspec import Struct

MOST_MARKS = 64
"""Marks that a session keeps."""


class MessageMark(Struct, frozen=True):
    """The mark of one message; `passed_over`: texts of the client follow it, under a turn of their own."""

    text: str
    count: int = 0
    turn: str = ""
    passed_over: bool = False

    def __str__(self) -> str:
        return f"{self.text}:{self.count}:{self.turn}"

    def known(self, marks: Sequence[str]) -> str | None:
        """Return the stored mark of the same message; None if the message was not applied."""
        return next((mark for mark in reversed(marks) if self._is_same(mark)), None)

    def _is_same(self, mark: str) -> bool:
        text, _, rest = mark.partition(":")
        count, _, turn = rest.partition(":")
        if text != self.text:
            return False
        if self.turn and turn and not self.passed_over:
            return turn == self.turn
        # A shortened history has fewer equal messages before this one, never more.
        return count.isdecimal() and self.count <= int(count)


def message_mark(text: str, count: int = 0, *, turn: str = "", passed_over: bool = False) -> MessageMark:
    """Return the mark of a text; `count` is the number of equal texts before it."""
    return MessageMark(_digest(text), count, _digest(turn) if turn else "", passed_over)


def equals_before(texts: Iterable[str]) -> list[int]:
    """Return for each text how many equal ones stand before it."""
    seen: Counter[str] = Counter()
    counts: list[int] = []
    for text in texts:
        counts.append(seen[text])
        seen[text] += 1
    return counts


def added(marks: tuple[str, ...], mark: MessageMark) -> tuple[str, ...]:
    """Return the marks with one more; the oldest go."""
    return (*marks, str(mark))[-MOST_MARKS:]


def is_among(mark: str, messages: Iterable[MessageMark]) -> bool:
    """Return whether a stored mark is that of one of these messages."""
    text_and_count = mark.rpartition(":")[0]
    return any(f"{message.text}:{message.count}" == text_and_count for message in messages)


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=9).hexdigest()
