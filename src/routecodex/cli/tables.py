"""Tables for people: aligned, no wider than the terminal, with colours only there.

Column, TableCell   parts of a table
Layout              column widths; formats row by row, for tables that grow
show                prints a whole table
"""

from __future__ import annotations

import os
import sys
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import dropwhile
from typing import TextIO

import click
from msgspec import Struct

from routecodex.accounting.figures import show_usd

GAP = "  "
ELLIPSIS = "…"
UNKNOWN = "—"
_MIN_WIDTH = 4

# Line ends, escape sequences and direction marks would control the terminal, and clients choose the names in
# a table.
_CONTROL_CHARACTERS = {
    *range(0x20),
    *range(0x7F, 0xA0),
    0x2028,
    0x2029,
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
}
_REPLACED = dict.fromkeys(_CONTROL_CHARACTERS, "?")


class Column(Struct, frozen=True):
    """A column of a table, and how it gives way on a narrow terminal.

    A `fixed` one is never shrunk. Columns with `drop` are left out, the lowest number first, if the others
    would get less than `min_width`. A long text loses its start if `keep_end` is set.
    """

    title: str
    right: bool = False
    min_width: int = 0
    fixed: bool = False
    drop: int = 0
    keep_end: bool = False


class TableCell(Struct, frozen=True):
    """A text with a colour."""

    text: str
    colour: str = ""


TableRow = Sequence[str | TableCell]


def width(text: str) -> int:
    """Return the columns of a text on a terminal: two for CJK characters, none for combining marks."""
    if text.isascii():
        return len(text)
    return sum(map(_width_of, text))


def _width_of(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def shorten(text: str, available: int) -> str:
    """Shorten a text to the available columns, with an ellipsis."""
    if width(text) <= available:
        return text
    shortened, left = [], available - 1
    for char in text:
        left -= _width_of(char)
        if left < 0:
            break
        shortened.append(char)
    return "".join(shortened) + ELLIPSIS


def shorten_start(text: str, available: int) -> str:
    """Shorten a text to the available columns; its end stays."""
    if width(text) <= available:
        return text
    end = shorten(text[::-1], available).removesuffix(ELLIPSIS)[::-1]
    # Without its letter a combining mark would be drawn over the ellipsis.
    return ELLIPSIS + "".join(dropwhile(lambda char: not _width_of(char), end))


def pad(text: str, available: int, *, right: bool = False) -> str:
    """Pad a text with blanks."""
    blanks = " " * (available - width(text))
    return blanks + text if right else text + blanks


def plain(text: str) -> str:
    """Replace line ends and characters that control a terminal."""
    return text.translate(_REPLACED)


class Layout:
    """Columns of a table and their widths.

    Until it fits, columns that may go are dropped and the widest of the others shrink. Cells of later rows
    are shortened to the widths, unless `whole` is set.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Iterable[TableRow] = (),
        *,
        available: int | None = None,
        colour: bool = False,
        whole: bool = False,
    ) -> None:
        self._columns = columns
        self._colour = colour
        self._whole = whole
        widths = [max(width(column.title), column.min_width) for column in columns]
        for row in rows:
            widths = [max(current, width(_text(cell))) for current, cell in zip(widths, row, strict=True)]
        self._widths = dict(enumerate(widths)) if available is None else _fit(columns, widths, available)

    def head(self) -> str:
        """Format the line of titles."""
        return self._line([TableCell(self._title(at), "bold") for at in range(len(self._columns))])

    def _title(self, at: int) -> str:
        """Return the title of a column; of one that keeps the end, the last word where it is too narrow."""
        column = self._columns[at]
        cut = column.keep_end and self._widths.get(at, 0) < width(column.title)
        return (column.title.rpartition(" ")[2] if cut else column.title).upper()

    def line(self, row: TableRow) -> str:
        """Format one row."""
        return self._line([cell if isinstance(cell, TableCell) else TableCell(cell) for cell in row])

    def _line(self, cells: Sequence[TableCell]) -> str:
        parts = []
        for at, available in self._widths.items():
            cell, column = cells[at], self._columns[at]
            text = plain(cell.text)
            if not self._whole:
                text = (shorten_start if column.keep_end else shorten)(text, available)
            blanks = " " * (available - width(text))
            shown = style(text, cell.colour) if self._colour and cell.colour else text
            parts.append(blanks + shown if column.right else shown + blanks)
        return GAP.join(parts).rstrip()


def _text(cell: str | TableCell) -> str:
    return plain(cell.text if isinstance(cell, TableCell) else cell)


def _fit(columns: Sequence[Column], widths: Sequence[int], available: int) -> dict[int, int]:
    """Return the widths of the columns that are shown, by their index."""
    left = dict(enumerate(widths))
    order = sorted((at for at in left if columns[at].drop), key=lambda at: columns[at].drop)
    for at in order:
        if _total({at: _least(columns[at], width) for at, width in left.items()}) <= available:
            break
        del left[at]
    return _shrink(columns, left, available)


def _least(column: Column, natural: int) -> int:
    """Return the width below which a column is hard to read."""
    return natural if column.fixed else min(natural, max(column.min_width, _MIN_WIDTH))


def _total(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + len(GAP) * (len(widths) - 1)


def _shrink(columns: Sequence[Column], widths: dict[int, int], available: int) -> dict[int, int]:
    """Take columns off the widest until the table fits; below their `min_width` only if all are there."""
    over = _total(widths) - available
    shrinkable = [at for at in widths if not columns[at].fixed]
    for floor in ({at: columns[at].min_width for at in shrinkable}, {}):
        while over > 0 and (
            wide := [at for at in shrinkable if widths[at] > max(_MIN_WIDTH, floor.get(at, 0))]
        ):
            widths[max(wide, key=widths.__getitem__)] -= 1
            over -= 1
    return widths


def style(text: str, colour: str) -> str:
    """Style a text in a colour, or `bold`."""
    if colour == "bold":
        return click.style(text, bold=True)
    return click.style(text, fg=colour)


def is_coloured(stream: TextIO) -> bool:
    """Whether to use colours: on a terminal, unless NO_COLOR is set."""
    return not os.environ.get("NO_COLOR") and stream.isatty()


def available_width(stream: TextIO) -> int | None:
    """Return the width of the terminal; None if the stream is not one."""
    if not stream.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def layout(columns: Sequence[Column], rows: Iterable[TableRow] = ()) -> Layout:
    """Return the layout of a table for stdout; in a pipe no cell is shortened."""
    available = available_width(sys.stdout)
    return Layout(columns, rows, available=available, colour=is_coloured(sys.stdout), whole=available is None)


def show(columns: Sequence[Column], rows: Sequence[TableRow]) -> None:
    """Print a table on stdout."""
    laid_out = layout(columns, rows)
    echo(laid_out.head())
    for row in rows:
        echo(laid_out.line(row))


def echo(text: str = "") -> None:
    """Print a line on stdout; colours are stripped unless it is a coloured terminal."""
    click.echo(text, color=True if is_coloured(sys.stdout) else None)


def heading(*texts: str) -> None:
    """Print a heading."""
    line = GAP.join(plain(text) for text in texts if text)
    echo(style(line, "bold") if is_coloured(sys.stdout) else line)


def print_problem(text: str, *, severity: str = "error") -> None:
    """Print `error: …` or `warning: …` on stderr."""
    head = f"{severity}: "
    if is_coloured(sys.stderr):
        head = style(head, "red" if severity == "error" else "yellow")
    click.echo(head + text, err=True)


def dollars(value: float | None) -> str:
    """Format a cost in USD; one that is unknown is a dash, never 0."""
    return UNKNOWN if value is None else show_usd(value)


def seconds(value: float | None) -> str:
    """Format a duration briefly."""
    if value is None:
        return ""
    if value < 60:
        return f"{value:.2f}s" if value < 10 else f"{value:.1f}s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"


def moment(value: float | str | None) -> str:
    """Format a time, in seconds since the epoch or in ISO format, as local time."""
    if not value:
        return ""
    at = _epoch(value) if isinstance(value, str) else value
    return str(value) if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _epoch(text: str) -> float | None:
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
