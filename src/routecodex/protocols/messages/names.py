"""Names and ids as the messages protocol takes them."""

from __future__ import annotations

import hashlib
import re
from typing import Final

NAME: Final = "messages"
ID_LIMIT = 64

_LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")


def legal_id(value: str) -> str:
    """A tool-call id the protocol takes: the same where it is legal, else one made from it, always alike."""
    if _LEGAL.fullmatch(value):
        return value
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    stem = _ILLEGAL.sub("_", value)[: ID_LIMIT - len(digest) - 1] or "toolu"
    return f"{stem}_{digest}"


class CallIds:
    """Legal ids for the calls of one conversation; an id used again in a later turn gets a number."""

    __slots__ = ("_used",)

    def __init__(self) -> None:
        self._used: set[str] = set()

    def fresh(self, value: str) -> str:
        """The id for one more call that its maker named `value`."""
        legal = legal_id(value)
        unique, number = legal, 1
        while unique in self._used:
            number += 1
            unique = legal_id(f"{legal}_{number}")
        self._used.add(unique)
        return unique
