"""Markdown for a terminal, rendered while it is still coming.

`MarkdownRenderer.feed` takes text in pieces of any size and returns the styled text that is certain by then;
it depends on the characters alone, not on the pieces. Every line of the source begins a line of its own.

markdown_inline   emphasis, code and links inside a line
markdown_table    tables, which are shown when they are complete
word_wrap         lines on the terminal
"""

from __future__ import annotations

import re

from msgspec import Struct

from routecodex.cli.markdown_inline import InlineScanner
from routecodex.cli.markdown_table import is_table, table_lines
from routecodex.cli.tables import width
from routecodex.cli.word_wrap import PLAIN, StyledText, Styles, WordWrap

_DIM = frozenset({"dim"})
_QUOTE = StyledText("│ ", _DIM)
_BULLET = "•"
_TAB = "    "
_HEADING_STYLES: dict[int, Styles] = {1: frozenset({"bold", "underline"})}
_HEADING_STYLE: Styles = frozenset({"bold"})

_UNDECIDED = re.compile(
    r"""[ \t]* (?:
        >                       # the marker takes the blank behind it
      | \#{1,6} [ \t]*
      | [-*_+ \t]+              # a bullet, a rule, or emphasis at the start
      | \d{1,9} (?: [.)][ \t]* )?
      | `{1,2} | ~{1,2}
    )?""",
    re.VERBOSE,
)
"""Starts of a line that do not show yet what it is."""
_MAX_START = 200
_WHOLE_LINE = re.compile(r"[ \t]*(?:`{3}|~{3}|\|)")
"""Fences and rows of tables, which are read to the end of their line."""
_QUOTE_MARK = re.compile(r"[ \t]*> ?")
_FENCE = re.compile(r"[ \t]*(?P<mark>`{3,}(?=[^`]*$)|~{3,})")
_ROW = re.compile(r"[ \t]*\|")
_RULE = re.compile(r"[ \t]*([-*_])(?:[ \t]*\1){2,}[ \t]*")
_HEADING = re.compile(r"[ \t]*(#{1,6})(?:[ \t]+|$)")
_ITEM = re.compile(r"([ \t]*)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)")


class OpenFence(Struct, frozen=True):
    """The fence of the code block that is open."""

    mark: str

    def may_close(self, line: str) -> bool:
        """Whether a line that begins like this can close the block."""
        return not line.strip().strip(self.mark[0])

    def closes(self, line: str) -> bool:
        return self.may_close(line) and len(line.strip()) >= len(self.mark)


def _is_undecided(start: str) -> bool:
    if _WHOLE_LINE.match(start):
        return True
    return len(start) <= _MAX_START and _UNDECIDED.fullmatch(start) is not None


class MarkdownRenderer:
    """Renders one text for a terminal of a width; after `close` the next one."""

    def __init__(self, width: int) -> None:
        self._wrap = WordWrap(width)
        self._reset()

    def _reset(self) -> None:
        # The start of a line until it shows what the line is, then None.
        self._start: str | None = ""
        self._quoted = 0
        self._inline = InlineScanner()
        self._fence: OpenFence | None = None
        self._rows: list[str] = []

    def resize(self, width: int) -> None:
        """Set the width of the lines that follow."""
        self._wrap.width = width

    def feed(self, text: str) -> list[StyledText]:
        """Return the text that can be shown now."""
        for char in text:
            if char == "\n":
                self._end_line()
            elif self._fence is not None:
                self._add_code(char, self._fence)
            else:
                self._add(char)
        return self._wrap.take()

    def close(self) -> list[StyledText]:
        """Return the rest; the last line is not ended."""
        at_start = self._start == ""
        self._finish_line()
        self._write_table(ended=at_start)
        self._reset()
        return self._wrap.close()

    def _add(self, char: str) -> None:
        if self._start is None:
            self._write(self._inline.feed(char))
            return
        self._start += char
        while self._start and not _is_undecided(self._start):
            quote = _QUOTE_MARK.match(self._start)
            if quote is None:
                self._begin_line(self._start)
                return
            self._quoted += 1
            self._start = self._start[quote.end() :]

    def _begin_line(self, start: str) -> None:
        """Write the start of a heading, a list item or a paragraph; the rest of the line follows."""
        self._write_table(ended=True)
        self._start = None
        heading, item = _HEADING.match(start), _ITEM.match(start)
        if heading is not None:
            self._open("", start[heading.end() :], _HEADING_STYLES.get(len(heading[1]), _HEADING_STYLE))
        elif item is not None:
            marker = _BULLET if item[2] in "-*+" else item[2]
            self._open(f"{item[1]}{marker} ", start[item.end() :])
        else:
            text = start.lstrip(" \t")
            self._open(start[: len(start) - len(text)], text)

    def _open(self, prefix: str, text: str, styles: Styles = PLAIN) -> None:
        """Begin a line; the lines that it continues on are indented to the end of the prefix."""
        quote = [_QUOTE] * self._quoted
        prefix = prefix.replace("\t", _TAB)
        self._wrap.begin([*quote, StyledText(prefix)], [*quote, StyledText(" " * width(prefix))])
        self._inline = InlineScanner(styles)
        for char in text:
            self._write(self._inline.feed(char))

    def _end_line(self) -> None:
        if self._finish_line():
            self._wrap.end_line()
        self._start, self._quoted = "", 0

    def _finish_line(self) -> bool:
        """Write what is held back of a line; return whether the line is on the screen, not in a table."""
        start = self._start
        if self._fence is not None:
            self._finish_code(start, self._fence)
        elif start is None:
            self._write(self._inline.close())
        elif _ROW.match(start) and not self._quoted:
            self._rows.append(start)
            return False
        else:
            self._write_whole(start)
        return True

    def _write_whole(self, line: str) -> None:
        """Write a line that showed what it is only at its end."""
        self._write_table(ended=True)
        fence = None if self._quoted else _FENCE.match(line)
        if fence is not None:
            self._fence = OpenFence(fence["mark"])
            self._wrap.verbatim(StyledText(line, _DIM))
        elif _RULE.fullmatch(line):
            self._wrap.verbatim(StyledText("─" * self._wrap.width, _DIM))
        elif line.strip() or self._quoted:
            self._begin_line(line)
            self._write(self._inline.close())

    def _add_code(self, char: str, fence: OpenFence) -> None:
        if self._start is not None and fence.may_close(self._start + char):
            self._start += char
            return
        self._wrap.verbatim(StyledText((self._start or "") + char))
        self._start = None

    def _finish_code(self, start: str | None, fence: OpenFence) -> None:
        closed = start is not None and fence.closes(start)
        self._wrap.verbatim(StyledText(start or "", _DIM if closed else PLAIN))
        if closed:
            self._fence = None

    def _write_table(self, *, ended: bool) -> None:
        """Write the table that the last line ended; without a line end behind it unless `ended`."""
        rows, self._rows = self._rows, []
        lines = table_lines(rows, self._wrap.width) if is_table(rows) else None
        for number, line in enumerate([[StyledText(row)] for row in rows] if lines is None else lines):
            if number:
                self._wrap.end_line()
            for piece in line:
                self._wrap.verbatim(piece)
        if rows and ended:
            self._wrap.end_line()

    def _write(self, pieces: list[StyledText]) -> None:
        for piece in pieces:
            self._wrap.add(piece)
