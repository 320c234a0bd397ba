"""Parts of the page on performance that a program writes: what stands between two marks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.report import Machine

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "performance.md"


def put(part: str, text: str, page: Path = PAGE) -> None:
    """Replace the text between the marks of a part; all other text stays."""
    begin, end = f"<!-- {part}: begin -->", f"<!-- {part}: end -->"
    head, rest = page.read_text().split(begin, 1)
    _, tail = rest.split(end, 1)
    page.write_text(f"{head}{begin}\n{text}\n{end}{tail}")


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a table."""
    first, *rest = [f"| {' | '.join(line)} |".replace("|  |", "| |") for line in (heads, *rows)]
    return [first, "|---" * len(heads) + "|", *rest]


def aligned(heads: list[str], rows: list[list[str]]) -> str:
    """Return the lines of a table for a terminal: text left, figures right."""
    lines = [heads, *rows]
    first, *widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(first), *(cell.rjust(width) for cell, width in zip(line[1:], widths, strict=True))]
        )
        for line in lines
    )


def taken(machine: Machine, how: str) -> str:
    """Return the line with date, machine and method of the figures."""
    return f"Taken on {machine.date}: {machine.cpu}, {machine.cores} cores, Python {machine.python}; {how}."
