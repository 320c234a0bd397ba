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
from collections.abc import Iterable, Sequence
from typing import TextIO

import click
from msgspec import Struct

GAP = "  "
ELLIPSIS = "…"
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
    """A column; a `fixed` one is not shrunk to fit the terminal."""

    title: str
    right: bool = False
    min_width: int = 0
    fixed: bool = False


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


def pad(text: str, available: int, *, right: bool = False) -> str:
    """Pad a text with blanks."""
    blanks = " " * (available - width(text))
    return blanks + text if right else text + blanks


def plain(text: str) -> str:
    """Replace line ends and characters that control a terminal."""
    return text.translate(_REPLACED)


class Layout:
    """Column widths of a table; the widest columns shrink until it fits."""

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Iterable[TableRow] = (),
        *,
        available: int | None = None,
        colour: bool = False,
    ) -> None:
        self._columns = columns
        self._colour = colour
        widths = [max(width(column.title), column.min_width) for column in columns]
        for row in rows:
            widths = [max(current, width(_text(cell))) for current, cell in zip(widths, row, strict=True)]
        self._widths = widths if available is None else _fit(columns, widths, available)

    def head(self) -> str:
        """Format the line of titles."""
        return self._line([TableCell(column.title.upper(), "bold") for column in self._columns])

    def line(self, row: TableRow) -> str:
        """Format one row."""
        return self._line([cell if isinstance(cell, TableCell) else TableCell(cell) for cell in row])

    def _line(self, cells: Sequence[TableCell]) -> str:
        parts = []
        for cell, column, available in zip(cells, self._columns, self._widths, strict=True):
            text = shorten(plain(cell.text), available)
            blanks = " " * (available - width(text))
            shown = style(text, cell.colour) if self._colour and cell.colour else text
            parts.append(blanks + shown if column.right else shown + blanks)
        return GAP.join(parts).rstrip()


def _text(cell: str | TableCell) -> str:
    return plain(cell.text if isinstance(cell, TableCell) else cell)


def _fit(columns: Sequence[Column], widths: list[int], available: int) -> list[int]:
    widths = list(widths)
    over = sum(widths) + len(GAP) * (len(columns) - 1) - available
    shrinkable = [at for at, column in enumerate(columns) if not column.fixed]
    while over > 0 and shrinkable:
        widest = max(shrinkable, key=widths.__getitem__)
        if widths[widest] <= _MIN_WIDTH:
            break
        widths[widest] -= 1
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
    """Return the layout of a table for stdout."""
    return Layout(columns, rows, available=available_width(sys.stdout), colour=is_coloured(sys.stdout))


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
