"""Finds instruction tags outside code, quoted lines and texts of agents.

A tag starts with `<**` and ends with the next `**>`, but the quoted text of a stopMessage may contain `**>`.
Of several `<**` before one `**>` the last one starts the tag; a `<**` that is not closed is ordinary text.

Code is roughly that of CommonMark: fenced blocks, and spans between equal runs of backticks, which end before
a blank line. `canon/agent_texts.py` tells the texts of agents from the user's.

Texts may be hostile: the result of every search is reused, so that the time stays linear in the text for any
number of tags.
"""

from __future__ import annotations

import re
from bisect import bisect_left

from routecodex.canon.agent_texts import user_spans

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
"""White space and invisible characters: zero-width characters, direction marks, byte order marks."""

GAP = f"[{re.escape(WHITE)}]*+"
_GAP = re.compile(GAP)

QUOTES = {'"': '"', "“": "”", "＂": "＂"}
"""Quotes around the text of a stopMessage, opening to closing."""

_MAX_TAIL = 200
_OPENINGS = re.compile(r"(?:<\*\*)+")
_OPENING = re.compile(r"<\*\*")
_CLOSING = re.compile(r"\*\*>")
_QUOTED = re.compile(f"{GAP}stopMessage{GAP}[:：]{GAP}([{''.join(QUOTES)}])", re.IGNORECASE)
_UNESCAPED = {end: re.compile(rf"(?<!\\)(?:\\\\)*+{end}") for end in QUOTES.values()}
_PIECES = re.compile(r"[<*>]|[^<*>]+")


class TagLookahead:
    """Finds the next match of a pattern; calls from left to right read the text once."""

    def __init__(self, text: str, pattern: re.Pattern[str]) -> None:
        self._text = text
        self._pattern = pattern
        self._since, self._start, self._end = 0, -1, -1

    def end_of_next(self, at: int) -> int | None:
        """Return the end of the first match that starts at `at` or later."""
        if not self._since <= at <= self._start:
            match = self._pattern.search(self._text, at)
            self._since = at
            self._start, self._end = match.span() if match else (len(self._text), -1)
        return self._end if self._end >= 0 else None


class TagScanner:
    """Finds the ends of the tags of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._openings = TagLookahead(text, _OPENING)
        self._closings = TagLookahead(text, _CLOSING)
        self._quoted: dict[str, tuple[TagLookahead, TagLookahead]] = {}
        """By closing quote, made when one is met: the quote, and the end of a tag after it."""

    def end_of(self, start: int) -> int | None:
        """Return the end of the tag that starts with the `<**` at `start`; None if it does not start one."""
        quoted = _QUOTED.match(self._text, start + 3)
        end = self._end_of_quoted(QUOTES[quoted[1]], quoted.end()) if quoted else None
        if end is not None:
            return end
        end = self._closings.end_of_next(start + 3)
        inner = self._openings.end_of_next(start + 3)
        nested = end is not None and inner is not None and inner <= end - 3
        return None if nested else end

    def _end_of_quoted(self, quote: str, begin: int) -> int | None:
        """Return the end of a stopMessage whose quoted text starts at `begin`; None if it is not one."""
        found = self._quoted.get(quote)
        if found is None:
            pair = TagLookahead(self._text, _UNESCAPED[quote]), TagLookahead(self._text, _CLOSING)
            found = self._quoted[quote] = pair
        quotes, closings = found
        closed = quotes.end_of_next(begin)
        end = None if closed is None else closings.end_of_next(closed)
        if closed is None or end is None or end - closed > _MAX_TAIL:
            return None
        # A missing closing quote must not match a quote in the text that follows.
        tail = self._text[closed : end - 3].strip(WHITE)
        return None if any(mark in tail for mark in (quote, "\n", "<**")) else end


def strip(text: str) -> str:
    """Remove all tags, in code too; the rest stays byte for byte the same."""
    if not _has_tag(text):
        return text
    tags, done, at = TagScanner(text), 0, 0
    pieces: list[str] = []
    while opening := _OPENINGS.search(text, at):
        start = opening.end() - 3
        end = tags.end_of(start)
        at = opening.end() if end is None else end
        if end is not None:
            pieces.append(text[done:start])
            done = end
    left = "".join((*pieces, text[done:]))
    return _strip_nested(left) if _has_tag(left) else left


def is_blank(text: str) -> bool:
    """Return whether the text has no visible character."""
    return not text.strip(WHITE)


def _has_tag(text: str) -> bool:
    start = text.find("<**")
    return start >= 0 and text.rfind("**>") >= start + 3


def _strip_nested(text: str) -> str:
    """Remove the tags that appear when tags between their halves are removed.

    The output is a stack: a tag is popped when it is closed, so later text follows the text before the tag.
    """
    output = ["", ""]
    starts: list[int] = []
    for piece in _PIECES.findall(text):
        output.append(piece)
        if piece == "*" and output[-2] == "*" and output[-3] == "<":
            starts.append(len(output) - 3)
        elif piece == ">" and output[-2] == "*" and output[-3] == "*":
            # In `<**>` both marks share their stars: it is not a tag, but it may close a tag around it.
            which = -1 if starts and starts[-1] <= len(output) - 6 else -2
            if len(starts) >= -which:
                del output[starts[which] :]
                del starts[which:]
    return "".join(output)


_FENCE = r"^ {0,3}(?:`{3,}+(?=[^`\n]*$)|~{3,}+)"
_FENCE_LINE = re.compile(r"^ {0,3}(`{3,}+|~{3,}+)[ \t\r]*$", re.MULTILINE)
_BREAK = re.compile(rf"\n[ \t\r]*\n|{_FENCE}", re.MULTILINE)
_TICKS = re.compile(r"`+")

MARKS = re.compile(
    rf"(?P<tag>(?:<\*\*)+)|(?P<fence>{_FENCE})|(?P<ticks>`+)|(?P<quote>^[ \t]{{0,3}}>[^\n]*)", re.MULTILINE
)
"""Starts of tags and of regions in which tags are not parsed."""


class QuotedRegions:
    """Finds the ends of the code and quoted lines of one text, by the match of `MARKS` that starts them."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._breaks = TagLookahead(text, _BREAK)
        self._runs: dict[int, list[int]] | None = None

    def end_of(self, mark: re.Match[str]) -> int:
        """Return the end of the region that the mark starts."""
        match mark.lastgroup:
            case "fence":
                return self._end_of_fence(mark)
            case "ticks":
                return self._end_of_span(mark)
            case _:
                return mark.end()

    def _end_of_fence(self, mark: re.Match[str]) -> int:
        fence = mark[0].lstrip(" ")
        for line in _FENCE_LINE.finditer(self._text, mark.end()):
            if line[1][0] == fence[0] and len(line[1]) >= len(fence):
                return line.end()
        return len(self._text)

    def _end_of_span(self, mark: re.Match[str]) -> int:
        """Return the end of a code span, or of the backticks if they do not start one."""
        length = len(mark[0])
        if self._runs is None:
            self._runs = _runs_of_ticks(self._text)
        starts = self._runs.get(length, [])
        index = bisect_left(starts, mark.end())
        escaped = self._text[mark.start() - 1 : mark.start()] == "\\"
        if escaped or index == len(starts):
            return mark.end()
        broken = self._breaks.end_of_next(mark.end())
        return mark.end() if broken is not None and broken <= starts[index] else starts[index] + length


def _runs_of_ticks(text: str) -> dict[int, list[int]]:
    """Return the starts of the runs of backticks, by their length."""
    runs: dict[int, list[int]] = {}
    for run in _TICKS.finditer(text):
        runs.setdefault(len(run[0]), []).append(run.start())
    return runs


def count_tags(text: str) -> int:
    """Count the tags of a text, those in code and in texts of agents too."""
    if not _has_tag(text):
        return 0
    tags, count, at = TagScanner(text), 0, 0
    while opening := _OPENINGS.search(text, at):
        end = tags.end_of(opening.end() - 3)
        at = opening.end() if end is None else end
        count += end is not None
    return count


def is_machine_made(text: str) -> bool:
    """Return whether no text of the user is in it: only white space and texts of agents."""
    return all(is_blank(text[start:end]) for start, end in user_spans(text))
