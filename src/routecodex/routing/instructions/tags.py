"""Where the marks of instructions are in a text, and the text without them.

A tag runs from `<**` to the next `**>`, except that the quoted text of a stopMessage may hold `**>` itself.
Of several `<**` before one `**>` the last one starts the tag; a `<**` that nothing closes is ordinary text.

Texts are hostile: every search for what comes next is remembered, so that the work stays linear in the text
however many marks it holds.
"""

from __future__ import annotations

import re

WHITE = "".join(
    chr(code)
    for code in (
        *(code for code in range(0x3001) if chr(code).isspace()),
        *(0x00AD, 0x180E, 0xFEFF),
        *range(0x200B, 0x2010),
        *range(0x202A, 0x202F),
        *range(0x2060, 0x2070),
    )
)
"""White space, and what cannot be seen: zero-width characters, direction marks, byte order marks."""

GAP = f"[{re.escape(WHITE)}]*+"

QUOTES = {'"': '"', "“": "”", "＂": "＂"}
"""The quotes around the text of a stopMessage, opening to closing."""

_LONGEST_TAIL = 200
_OPENINGS = re.compile(r"(?:<\*\*)+")
_OPENING = re.compile(r"<\*\*")
_CLOSING = re.compile(r"\*\*>")
_QUOTED = re.compile(f"{GAP}stopMessage{GAP}[:：]{GAP}([{''.join(QUOTES)}])", re.IGNORECASE)
_UNESCAPED = {end: re.compile(rf"(?<!\\)(?:\\\\)*+{end}") for end in QUOTES.values()}
_PIECES = re.compile(r"[<*>]|[^<*>]+")


class TagLookahead:
    """Where a pattern is met next; asked from left to right it reads the text once."""

    def __init__(self, text: str, pattern: re.Pattern[str]) -> None:
        self._text = text
        self._pattern = pattern
        self._since, self._start, self._end = 0, -1, -1

    def end_of_next(self, at: int) -> int | None:
        """The end of the first match that starts at `at` or later."""
        if not self._since <= at <= self._start:
            match = self._pattern.search(self._text, at)
            self._since = at
            self._start, self._end = match.span() if match else (len(self._text), -1)
        return self._end if self._end >= 0 else None


class TagScanner:
    """The tags of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._openings = TagLookahead(text, _OPENING)
        self._closings = TagLookahead(text, _CLOSING)
        self._quotes = {end: TagLookahead(text, pattern) for end, pattern in _UNESCAPED.items()}
        self._closings_after = {end: TagLookahead(text, _CLOSING) for end in _UNESCAPED}

    def end_of(self, start: int) -> int | None:
        """The end of the tag that the `<**` at `start` begins; None when it begins none."""
        quoted = _QUOTED.match(self._text, start + 3)
        end = self._end_of_quoted(QUOTES[quoted[1]], quoted.end()) if quoted else None
        if end is not None:
            return end
        end = self._closings.end_of_next(start + 3)
        inner = self._openings.end_of_next(start + 3)
        nested = end is not None and inner is not None and inner <= end - 3
        return None if nested else end

    def _end_of_quoted(self, quote: str, begin: int) -> int | None:
        """The end of a stopMessage whose quoted text begins here; None when it does not look like one."""
        closed = self._quotes[quote].end_of_next(begin)
        end = None if closed is None else self._closings_after[quote].end_of_next(closed)
        if closed is None or end is None or end - closed > _LONGEST_TAIL:
            return None
        # A quote that was forgotten must not reach for one in the text that follows.
        tail = self._text[closed : end - 3].strip(WHITE)
        return None if any(sign in tail for sign in (quote, "\n", "<**")) else end


def strip(text: str) -> str:
    """The text without any tag, in code or out of it; the rest stays byte for byte the same."""
    if not _has_tag(text):
        return text
    tags, kept, done, at = TagScanner(text), [], 0, 0
    while opening := _OPENINGS.search(text, at):
        start = opening.end() - 3
        end = tags.end_of(start)
        at = opening.end() if end is None else end
        if end is not None:
            kept.append(text[done:start])
            done = end
    left = "".join((*kept, text[done:]))
    return _strip_joined(left) if _has_tag(left) else left


def is_blank(text: str) -> bool:
    """Whether nothing in the text can be seen."""
    return not text.strip(WHITE)


def _has_tag(text: str) -> bool:
    start = text.find("<**")
    return start >= 0 and text.rfind("**>") >= start + 3


def _strip_joined(text: str) -> str:
    """The text without the tags that come to be when others between their halves are taken out.

    What is kept is a stack: a tag is taken off it the moment it is closed, and what follows meets what stood
    before.
    """
    kept = ["", ""]
    starts: list[int] = []
    for piece in _PIECES.findall(text):
        kept.append(piece)
        if piece == "*" and kept[-2] == "*" and kept[-3] == "<":
            starts.append(len(kept) - 3)
        elif piece == ">" and kept[-2] == "*" and kept[-3] == "*":
            # In `<**>` the marks share their stars: that is no tag, but it may close one around it.
            which = -1 if starts and starts[-1] <= len(kept) - 6 else -2
            if len(starts) >= -which:
                del kept[starts[which] :]
                del starts[which:]
    return "".join(kept)
