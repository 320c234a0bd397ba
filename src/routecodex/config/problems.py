"""Problems of a configuration: place, message and fix, for people."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

from routecodex.canon.errors import ConfigError

ConfigPath = tuple[str | int, ...]
"""Path of a value in the file: keys, and indexes of list entries from 0."""

Hidden = frozenset[ConfigPath]
"""Places whose text came from the environment: it may be a misplaced key, and is never shown."""

_MAX_DISPLAYED = 120
_ESCAPED = re.compile(r'[\\"\x00-\x1f\x7f]')
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")


class Problem(Struct, frozen=True):
    """One problem: its place, the message and the fix.

    `absent`: something is missing, which a problem deeper inside may explain.
    """

    place: ConfigPath
    message: str
    fix: str = ""
    severity: Literal["error", "warning"] = "error"
    absent: bool = False
    file: str = ""
    line: int | None = None

    @property
    def path(self) -> str:
        """The place as a TOML path: `providers.glm.auth[0].env`."""
        return path_text(self.place)

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        head = ": ".join(part for part in (where, self.path) if part)
        text = f"{head}: {self.message}" if head else self.message
        return f"{text}. Fix: {self.fix}" if self.fix else text


def warning(place: ConfigPath, message: str, fix: str, *, absent: bool = False) -> Problem:
    """Return a problem that does not keep the configuration from being used."""
    return Problem(place, message, fix, severity="warning", absent=absent)


class InvalidConfig(ConfigError):
    """The configuration cannot be used; `problems` holds every problem, not just the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        lines = "".join(f"\n  - {problem}" for problem in self.problems)
        super().__init__(f"The configuration has {count}:{lines}")


def path_text(place: ConfigPath) -> str:
    """Return a place as a dotted TOML path, with quoted keys where needed."""
    text = ""
    for step in place:
        if isinstance(step, int):
            text += f"[{step}]"
            continue
        key = step if _BARE_KEY.match(step) else quoted(step)
        text += f".{key}" if text else key
    return text


def quoted(text: str) -> str:
    """Return the text as a TOML basic string."""
    return '"' + _ESCAPED.sub(_escape, text) + '"'


def _escape(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04x}"


def display(text: str, place: ConfigPath, hidden: Hidden) -> str:
    """Return the text for a message, without values of the environment and without passwords."""
    if place in hidden:
        return "the value from the environment"
    if "@" in text:
        return "this value"
    return quoted(text if len(text) <= _MAX_DISPLAYED else text[:_MAX_DISPLAYED] + "…")


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word closest to `word`."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def choices(words: Iterable[str], *, limit: int = 12) -> str:
    """Return the words as a quoted list of at most `limit`."""
    every = list(words)
    listed = ", ".join(quoted(word) for word in every[:limit])
    return f"{listed}, …" if len(every) > limit else listed
