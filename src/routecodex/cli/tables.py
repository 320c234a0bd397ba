"""Tables for people: aligned, no wider than the terminal, in colour only where somebody is looking.

Column, Cell    what a table is made of
Layout          the widths; lines can be made one by one, so that a table may grow while it is watched
show            prints a whole table
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
_NARROWEST = 4

# Ends of lines, escape sequences and marks that turn the direction of text would steer the terminal, and
# names in a table come from clients.
_STEERING = {
    *range(0x20),
    *range(0x7F, 0xA0),
    0x2028,
    0x2029,
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
}
_HARMLESS = dict.fromkeys(_STEERING, "?")


class Column(Struct, frozen=True):
    """A column; `least` is its width before any row is known; one with `keep` does not give way."""

    title: str
    right: bool = False
    least: int = 0
    keep: bool = False


class TableCell(Struct, frozen=True):
    """A text with a colour."""

    text: str
    colour: str = ""


TableRow = Sequence[str | TableCell]


def width(text: str) -> int:
    """The room a text takes on a terminal: CJK signs take two columns, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(map(_width_of, text))


def _width_of(sign: str) -> int:
    if unicodedata.combining(sign) or unicodedata.category(sign) in ("Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def shorten(text: str, room: int) -> str:
    """The text, or its beginning and an ellipsis where it takes more than the room."""
    if width(text) <= room:
        return text
    kept, left = [], room - 1
    for sign in text:
        left -= _width_of(sign)
        if left < 0:
            break
        kept.append(sign)
    return "".join(kept) + ELLIPSIS


def pad(text: str, room: int, *, right: bool = False) -> str:
    """The text filled up with blanks to the room."""
    blanks = " " * (room - width(text))
    return blanks + text if right else text + blanks


def plain(text: str) -> str:
    """The text without what could end a line or steer a terminal."""
    return text.translate(_HARMLESS)


class Layout:
    """The widths of a table's columns; the widest give way until it fits."""

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Iterable[TableRow] = (),
        *,
        room: int | None = None,
        colour: bool = False,
    ) -> None:
        self._columns = columns
        self._colour = colour
        widths = [max(width(column.title), column.least) for column in columns]
        for row in rows:
            widths = [max(taken, width(_text(cell))) for taken, cell in zip(widths, row, strict=True)]
        self._widths = widths if room is None else _fitted(columns, widths, room)

    def head(self) -> str:
        """The line of titles."""
        return self._line([TableCell(column.title.upper(), "bold") for column in self._columns])

    def line(self, row: TableRow) -> str:
        """One row."""
        return self._line([cell if isinstance(cell, TableCell) else TableCell(cell) for cell in row])

    def _line(self, cells: Sequence[TableCell]) -> str:
        parts = []
        for cell, column, room in zip(cells, self._columns, self._widths, strict=True):
            text = shorten(plain(cell.text), room)
            blanks = " " * (room - width(text))
            shown = style(text, cell.colour) if self._colour and cell.colour else text
            parts.append(blanks + shown if column.right else shown + blanks)
        return GAP.join(parts).rstrip()


def _text(cell: str | TableCell) -> str:
    return plain(cell.text if isinstance(cell, TableCell) else cell)


def _fitted(columns: Sequence[Column], widths: list[int], room: int) -> list[int]:
    widths = list(widths)
    over = sum(widths) + len(GAP) * (len(columns) - 1) - room
    yielding = [at for at, column in enumerate(columns) if not column.keep]
    while over > 0 and yielding:
        widest = max(yielding, key=widths.__getitem__)
        if widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
        over -= 1
    return widths


def style(text: str, colour: str) -> str:
    """The text in a colour, or `bold`."""
    if colour == "bold":
        return click.style(text, bold=True)
    return click.style(text, fg=colour)


def is_coloured(stream: TextIO) -> bool:
    """Whether colours go there: to a terminal, unless NO_COLOR forbids it."""
    return not os.environ.get("NO_COLOR") and stream.isatty()


def available_width(stream: TextIO) -> int | None:
    """The width of the terminal; None where there is none, and nothing has to fit."""
    if not stream.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def layout(columns: Sequence[Column], rows: Iterable[TableRow] = ()) -> Layout:
    """The layout of a table that goes to stdout."""
    return Layout(columns, rows, room=available_width(sys.stdout), colour=is_coloured(sys.stdout))


def show(columns: Sequence[Column], rows: Sequence[TableRow]) -> None:
    """Prints a table on stdout."""
    laid_out = layout(columns, rows)
    echo(laid_out.head())
    for row in rows:
        echo(laid_out.line(row))


def echo(text: str = "") -> None:
    """Prints a line on stdout, with its colours if it has any: whoever made it has looked who reads it."""
    click.echo(text, color=True if is_coloured(sys.stdout) else None)


def heading(*words: str) -> None:
    """Prints a line that stands above something."""
    line = GAP.join(plain(word) for word in words if word)
    echo(style(line, "bold") if is_coloured(sys.stdout) else line)


def complain(text: str, *, severity: str = "error") -> None:
    """Prints `error: …` or `warning: …` on stderr."""
    head = f"{severity}: "
    if is_coloured(sys.stderr):
        head = style(head, "red" if severity == "error" else "yellow")
    click.echo(head + text, err=True)


def seconds(value: float | None) -> str:
    """A span of time in few signs."""
    if value is None:
        return ""
    if value < 60:
        return f"{value:.2f}s" if value < 10 else f"{value:.1f}s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"


def moment(value: float | str | None) -> str:
    """A moment, as seconds since the epoch or in ISO format, in local time."""
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
