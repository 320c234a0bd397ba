"""Writes the table of instructions into the manual, so that both say what the code does.

`python -m routecodex.cli.instruction_reference` renews it in docs/routing.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

from routecodex.routing.instructions.values import help_text

BEGIN = "<!-- generated: instructions -->"
END = "<!-- end of generated -->"


def renewed(page: str) -> str:
    """The page with the table as it is now, between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the table: {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{help_text()}\n\n{END}{after}"


def write(directory: Path) -> None:
    """Renews the page in the directory."""
    file = directory / "routing.md"
    file.write_text(renewed(file.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs"))
