"""Inline Markdown of one line: emphasis, code, links, escapes; decided as early as the text allows.

A mark is held back until its counterpart comes. One without a counterpart on its line, or within
`_MAX_HELD` characters, is ordinary text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from string import punctuation

from msgspec import Struct

from routecodex.cli.word_wrap import PLAIN, StyledText, Styles, merged

_MAX_HELD = 600
_MARKS = frozenset("\\`*_~[!")
_DECISIVE = {
    "\\": _MARKS,
    "`": frozenset("`"),
    "*": frozenset("*"),
    "_": frozenset("_"),
    "~": frozenset("~"),
    "[": frozenset("[]()"),
    "!": frozenset("![]()"),
}
"""Characters that can end the wait of a mark; it also ends with the character behind one of them."""
_ORDINARY = re.compile(r"[^\\`*_~\[!]+")
_BACKTICKS = re.compile(r"`+")
_STRIKE = "~~"
_LINK_TITLE = re.compile(r"""\s+(?:"[^"]*"|'[^']*')$""")
_EMPHASIS: dict[int, Styles] = {
    1: frozenset({"italic"}),
    2: frozenset({"bold"}),
    3: frozenset({"bold", "italic"}),
}


class InlineMatch(Struct, frozen=True):
    """A construct: its text, and the index behind it."""

    pieces: list[StyledText]
    end: int


class InlinePosition(Struct, frozen=True):
    """A place in a line: text from the mark on, the character before it, the styles around it.

    `final`: the line ends with the text, so that nothing can be undecided.
    """

    text: str
    previous: str
    styles: Styles
    final: bool

    def literal(self, length: int = 1) -> InlineMatch:
        """Return the mark as ordinary text."""
        return InlineMatch([StyledText(self.text[:length], self.styles)], length)

    def inner(self, text: str, *more: str) -> list[StyledText]:
        """Return the text inside the mark, with more styles."""
        return scan(text, styles=self.styles | frozenset(more), previous=self.text[0], final=True)[0]

    def is_open_end(self, at: int) -> bool:
        """Whether the text ends here and the line may not."""
        return at == len(self.text) and not self.final


class InlineScanner:
    """Scans one line as it comes."""

    def __init__(self, styles: Styles = PLAIN) -> None:
        self._styles = styles
        self._held = ""
        self._previous = ""

    def feed(self, char: str) -> list[StyledText]:
        """Return the text that is decided with this character."""
        last = self._held[-1:]
        self._held += char
        if last and len(self._held) <= _MAX_HELD and not _DECISIVE[self._held[0]] & {last, char}:
            return []
        return self._scan(final=False)

    def close(self) -> list[StyledText]:
        """Return the rest of the line."""
        return self._scan(final=True)

    def _scan(self, *, final: bool) -> list[StyledText]:
        text = self._held
        pieces, self._held = scan(text, styles=self._styles, previous=self._previous, final=final)
        read = text.removesuffix(self._held) if self._held else text
        self._previous = read[-1:] or self._previous
        return pieces


def scan(
    text: str, *, styles: Styles = PLAIN, previous: str = "", final: bool = True
) -> tuple[list[StyledText], str]:
    """Return the decided text with its styles, and the rest."""
    pieces: list[StyledText] = []
    at = 0
    while at < len(text):
        ordinary = _ORDINARY.match(text, at)
        if ordinary is not None:
            pieces.append(StyledText(ordinary[0], styles))
            at = ordinary.end()
            continue
        before = text[at - 1] if at else previous
        place = InlinePosition(text[at:], before, styles, final or len(text) - at > _MAX_HELD)
        found = _MATCHERS[text[at]](place)
        if found is None:
            return merged(pieces), text[at:]
        pieces += found.pieces
        at += found.end
    return merged(pieces), ""


def _match_escape(place: InlinePosition) -> InlineMatch | None:
    if place.is_open_end(1):
        return None
    escaped = place.text[1:2]
    if escaped and escaped in punctuation:
        return InlineMatch([StyledText(escaped, place.styles)], 2)
    return place.literal()


def _match_code(place: InlinePosition) -> InlineMatch | None:
    opening = _run(place.text, 0)
    if place.is_open_end(opening):
        return None
    for closing in _BACKTICKS.finditer(place.text, opening):
        if place.is_open_end(closing.end()):
            return None
        if len(closing[0]) == opening:
            code = place.text[opening : closing.start()]
            if code.strip() and code[0] == code[-1] == " ":
                code = code[1:-1]
            return InlineMatch([StyledText(code, place.styles | {"code"})], closing.end())
    return place.literal(opening) if place.final else None


def _match_emphasis(place: InlinePosition) -> InlineMatch | None:
    """Match `*` and `_`, which open before a letter and close behind one.

    The rule of CommonMark for punctuation beside a mark is left out: it breaks `**“…”**` in Chinese text.
    """
    text, opening = place.text, _run(place.text, 0)
    if place.is_open_end(opening):
        return None
    if not _opens(text, 0, opening, place.previous) or opening not in _EMPHASIS:
        return place.literal(opening)
    found = _find_closing(place, opening)
    if found is None:
        return place.literal(opening) if place.final else None
    return InlineMatch(place.inner(text[opening : found - opening], *_EMPHASIS[opening]), found)


def _find_closing(place: InlinePosition, opening: int) -> int | None:
    """Return the index behind the run that closes the first one; None if it is not there yet."""
    text, mark = place.text, place.text[0]
    open_runs, at = [opening], opening
    while at < len(text):
        if text[at] != mark:
            at = _next(text, at)
            continue
        run = _run(text, at)
        if place.is_open_end(at + run):
            return None
        left = run
        while left and open_runs and open_runs[-1] <= left and _closes(text, at, at + run):
            left -= open_runs.pop()
        if not open_runs:
            return at + run - left
        if left == run and _opens(text, at, at + run, text[at - 1]) and not _closes(text, at, at + run):
            open_runs.append(run)
        at += run
    return None


def _next(text: str, at: int) -> int:
    """Return the index behind a character, an escaped one or a code span."""
    if text[at] == "\\":
        return at + 2
    if text[at] != "`":
        return at + 1
    opening = _run(text, at)
    closing = (found for found in _BACKTICKS.finditer(text, at + opening) if len(found[0]) == opening)
    return next((found.end() for found in closing), at + opening)


def _opens(text: str, start: int, end: int, before: str) -> bool:
    after = text[end : end + 1]
    inside_word = text[start] == "_" and before.isalnum()
    return bool(after) and not after.isspace() and not inside_word


def _closes(text: str, start: int, end: int) -> bool:
    inside_word = text[start] == "_" and text[end : end + 1].isalnum()
    return not text[start - 1].isspace() and not inside_word


def _match_strike(place: InlinePosition) -> InlineMatch | None:
    text, opening = place.text, _run(place.text, 0)
    if place.is_open_end(opening):
        return None
    if opening != len(_STRIKE) or text[opening : opening + 1].isspace():
        return place.literal(opening)
    closing = text.find(_STRIKE, opening + 1)
    if closing < 0:
        return place.literal(opening) if place.final else None
    return InlineMatch(place.inner(text[opening:closing], "strike"), closing + len(_STRIKE))


def _match_link(place: InlinePosition) -> InlineMatch | None:
    """Match `[text](address)`; the address is shown behind the text."""
    text = place.text
    label_end = _closing_bracket(text, 0)
    if label_end is None or place.is_open_end(label_end + 1):
        return place.literal() if place.final else None
    if text[label_end + 1 : label_end + 2] != "(":
        return place.literal()
    end = _closing_bracket(text, label_end + 1)
    if end is None:
        return place.literal() if place.final else None
    label, address = text[1:label_end], _LINK_TITLE.sub("", text[label_end + 2 : end].strip())
    pieces = place.inner(label, "underline")
    if address and address != label:
        pieces = [*pieces, StyledText(f" ({address})", place.styles | {"dim"})]
    return InlineMatch(pieces, end + 1)


def _closing_bracket(text: str, at: int) -> int | None:
    """Return the index of the bracket that closes the one at `at`."""
    opening, closing = text[at], {"[": "]", "(": ")"}[text[at]]
    depth = 0
    while at < len(text):
        depth += (text[at] == opening) - (text[at] == closing)
        if not depth:
            return at
        at = at + 2 if text[at] == "\\" else at + 1
    return None


def _match_image(place: InlinePosition) -> InlineMatch | None:
    """Match `![text](address)`, which is shown like a link."""
    if place.is_open_end(1):
        return None
    if place.text[1:2] != "[":
        return place.literal()
    inner = InlinePosition(place.text[1:], "!", place.styles, place.final)
    found = _match_link(inner)
    if found is None:
        return None
    return place.literal() if found == inner.literal() else InlineMatch(found.pieces, found.end + 1)


def _run(text: str, at: int) -> int:
    """Return how often the character at `at` is repeated."""
    end = at
    while end < len(text) and text[end] == text[at]:
        end += 1
    return end - at


_MATCHERS: dict[str, Callable[[InlinePosition], InlineMatch | None]] = {
    "\\": _match_escape,
    "`": _match_code,
    "*": _match_emphasis,
    "_": _match_emphasis,
    "~": _match_strike,
    "[": _match_link,
    "!": _match_image,
}
