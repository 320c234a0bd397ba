"""Tables of Markdown as aligned lines; cells that are too long wrap inside their column."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from routecodex.cli.markdown_inline import scan
from routecodex.cli.word_wrap import StyledText, merged, width_of, wrapped

Pieces = list[StyledText]

_DIM = frozenset({"dim"})
_BOLD = frozenset({"bold"})
_SEPARATOR = " │ "
_CROSSING = "─┼─"
_MIN_COLUMNS = 6
_CELL = re.compile(r"(?:\\.|[^|\\])*")
_DELIMITER = re.compile(r"\s*:?-+:?\s*")


def is_table(rows: Sequence[str]) -> bool:
    """Whether lines that begin with `|` are a table: the second one separates the titles from the rest."""
    return len(rows) > 1 and all(map(_DELIMITER.fullmatch, _split(rows[1])))


def table_lines(rows: Sequence[str], available: int) -> list[Pieces] | None:
    """Return the lines of a table; None if its columns do not fit into the available width."""
    alignments = [_is_right(cell) for cell in _split(rows[1])]
    titles = [scan(cell, styles=_BOLD)[0] for cell in _split(rows[0])]
    body = [[scan(cell)[0] for cell in _split(row)] for row in rows[2:]]
    count = max(map(len, (titles, *body)))
    right = [*alignments, *[False] * count][:count]
    every = [[*cells, *[[]] * (count - len(cells))] for cells in (titles, *body)]
    widths = _fit([max(width_of(row[at]) for row in every) for at in range(count)], available)
    if widths is None:
        return None
    rule = [StyledText(_CROSSING.join("─" * columns for columns in widths), _DIM)]
    head, *rest = [list(_row_lines(cells, widths, right)) for cells in every]
    return [*head, rule, *(line for lines in rest for line in lines)]


def _split(row: str) -> list[str]:
    """Return the cells of a row; an escaped `|` belongs to its cell."""
    inner = row.strip().removeprefix("|")
    cells = [
        found[0] for found in _CELL.finditer(inner) if found.start() == 0 or inner[found.start() - 1] == "|"
    ]
    # Behind the closing `|` there is no cell.
    if inner.endswith("|") and not inner.endswith("\\|"):
        cells = cells[:-1]
    return [cell.strip().replace("\\|", "|") for cell in cells]


def _is_right(delimiter: str) -> bool:
    return delimiter.endswith(":") and not delimiter.startswith(":")


def _fit(widths: list[int], available: int) -> list[int] | None:
    """Shrink the widest columns until the table fits."""
    left = available - len(_SEPARATOR) * (len(widths) - 1)
    widths = [max(columns, 1) for columns in widths]
    while sum(widths) > left:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= _MIN_COLUMNS:
            return None
        widths[widest] -= 1
    return widths


def _row_lines(cells: Sequence[Pieces], widths: Sequence[int], right: Sequence[bool]) -> Iterator[Pieces]:
    columns = [wrapped(cell, columns) for cell, columns in zip(cells, widths, strict=True)]
    for line in zip_longest(*columns, fillvalue=[]):
        pieces: Pieces = []
        for at, cell in enumerate(line):
            pieces += [StyledText(_SEPARATOR, _DIM)] if at else []
            blanks = StyledText(" " * (widths[at] - width_of(cell)))
            pieces += [blanks, *cell] if right[at] else [*cell, blanks]
        yield _without_end(merged(pieces))


def _without_end(line: Pieces) -> Pieces:
    """Remove the blanks at the end of a line."""
    *rest, last = line
    return merged([*rest, StyledText(last.text.rstrip(), last.styles)])
