"""Styled text, and its lines on a terminal, while it is still coming.

StyledText   a text with its styles
WordWrap     breaks lines between words; a word is written once it is complete, so that nothing moves later
TextRenderer wraps plain text
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from routecodex.cli.tables import width

Styles = frozenset[str]
PLAIN: Styles = frozenset()

_TAB = "    "
_ZERO_WIDTH_JOINER = "\u200d"
_NOT_FIRST = frozenset("，。、；：？！）】》〉」』”’…—～·％,.;:?!)]}%")
_NOT_LAST = frozenset("（【《〈「『“‘([{￥$")
"""Punctuation that does not begin or end a line of Chinese or Japanese text."""


class StyledText(Struct, frozen=True):
    """A text with its styles: bold, italic, underline, strike, dim, code."""

    text: str
    styles: Styles = PLAIN


def merged(pieces: Iterable[StyledText]) -> list[StyledText]:
    """Join neighbours of the same styles."""
    result: list[StyledText] = []
    for piece in pieces:
        if result and result[-1].styles == piece.styles:
            result[-1] = StyledText(result[-1].text + piece.text, piece.styles)
        elif piece.text:
            result.append(piece)
    return result


def width_of(pieces: Iterable[StyledText]) -> int:
    """Return the columns of styled text on a terminal."""
    return sum(width(piece.text) for piece in pieces)


def can_break(before: str, after: str) -> bool:
    """Whether a line may end between two characters without a blank: around wide ones, except punctuation."""
    if after in _NOT_FIRST or before in _NOT_LAST or before == _ZERO_WIDTH_JOINER:
        return False
    return width(after) > 0 and (width(before) == 2 or width(after) == 2)


class WordWrap:
    """Collects lines of at most `width` columns; `take` returns what has been written since the last call."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._written: list[StyledText] = []
        self._column = 0
        self._hang: Sequence[StyledText] = ()
        self._blanks: list[StyledText] = []
        self._word: list[StyledText] = []
        self._word_width = 0

    def take(self) -> list[StyledText]:
        """Return the text that can be shown."""
        written, self._written = self._written, []
        return merged(written)

    def begin(self, prefix: Sequence[StyledText], hang: Sequence[StyledText]) -> None:
        """Begin a line with a prefix; the lines that it continues on begin with `hang`."""
        for piece in prefix:
            self._write(piece)
        # A deep indentation must leave room for words.
        self._hang = hang if width_of(hang) <= self.width // 2 else ()

    def add(self, piece: StyledText) -> None:
        """Add text without line ends."""
        for char in piece.text:
            if char.isspace():
                self._end_word()
                self._blanks.append(StyledText(_TAB if char == "\t" else char, piece.styles))
            else:
                self._add_letter(char, piece.styles)

    def verbatim(self, piece: StyledText) -> None:
        """Add text that is not wrapped."""
        self._end_word()
        self._write(piece)

    def end_line(self) -> None:
        """End the line."""
        self.flush()
        self._written.append(StyledText("\n"))
        self._column, self._hang = 0, ()

    def flush(self) -> None:
        """Write the last word of a line; blanks at its end are left out."""
        self._end_word()
        self._blanks.clear()

    def close(self) -> list[StyledText]:
        """Return the rest; the next text begins at the start of a line."""
        self.flush()
        self._column, self._hang = 0, ()
        return self.take()

    def _add_letter(self, char: str, styles: Styles) -> None:
        if self._word and can_break(self._word[-1].text[-1], char):
            self._end_word()
        columns = width(char)
        if self._word_width + columns > self.width - width_of(self._hang):
            # The word does not fit into a line of its own.
            self._end_word()
        self._word.append(StyledText(char, styles))
        self._word_width += columns

    def _end_word(self) -> None:
        if not self._word:
            return
        blanks = width_of(self._blanks)
        if self._column + blanks + self._word_width <= self.width:
            self._written += self._blanks
            self._column += blanks
        elif self._column > width_of(self._hang):
            self._written.append(StyledText("\n"))
            self._column = 0
            for piece in self._hang:
                self._write(piece)
        self._written += self._word
        self._column += self._word_width
        self._blanks.clear()
        self._word.clear()
        self._word_width = 0

    def _write(self, piece: StyledText) -> None:
        self._written.append(piece)
        self._column += width(piece.text)


def wrapped(pieces: Iterable[StyledText], columns: int) -> list[list[StyledText]]:
    """Return the lines of a text that is complete."""
    wrap = WordWrap(columns)
    for piece in pieces:
        wrap.add(piece)
    wrap.flush()
    lines: list[list[StyledText]] = [[]]
    for piece in wrap.take():
        first, *rest = piece.text.split("\n")
        lines[-1].append(StyledText(first, piece.styles))
        lines += [[StyledText(text, piece.styles)] for text in rest]
    return [merged(line) for line in lines]


class TextRenderer:
    """Wraps plain text as it comes."""

    def __init__(self, width: int, styles: Styles = PLAIN) -> None:
        self._wrap = WordWrap(width)
        self._styles = styles

    def resize(self, width: int) -> None:
        """Set the width of the lines that follow."""
        self._wrap.width = width

    def feed(self, text: str) -> list[StyledText]:
        """Return the text that can be shown now."""
        first, *rest = text.split("\n")
        self._wrap.add(StyledText(first, self._styles))
        for line in rest:
            self._wrap.end_line()
            self._wrap.add(StyledText(line, self._styles))
        return self._wrap.take()

    def close(self) -> list[StyledText]:
        """Return the rest; the last line is not ended."""
        return self._wrap.close()
