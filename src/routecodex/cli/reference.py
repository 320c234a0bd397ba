"""Writes the pages that are generated from the commands' help and from the instruction table.

`python -m routecodex.cli.reference` writes docs/cli.md and the table of instructions in docs/routing.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from routecodex.cli import main
from routecodex.routing.instructions import help_text

BEGIN = "<!-- generated: instructions -->"
END = "<!-- end of generated -->"
_WIDTH = 100
_INTRO = """\
# Command line

The commands of `routecodex`, as printed by `--help`. This page is generated from the code:
`python -m routecodex.cli.reference`.

- **Servers announce themselves** in the user dir (`~/.routecodex`, or `ROUTECODEX_USER_DIR`) while they run.
  Commands apply to all of them, or to the one chosen with `--server`; a server that was killed is reported on
  stderr and skipped.
- **`--json`** prints the same for scripts. Tables are for people: they fit the terminal and have colours
  only there, never with `NO_COLOR` set.
- **Exit codes** are 0 (done), 1 (a server rejected the call, or something failed), 2 (wrong arguments or
  configuration) and 3 (no server is running).
- **Completion** for bash, zsh and fish: `routecodex completion --help`.
"""


def page() -> str:
    """Return the page docs/cli.md."""
    return _INTRO + "".join(f"\n{section}" for section in _sections(main, None, "routecodex"))


def _sections(command: click.Command, parent: click.Context | None, name: str) -> Iterator[str]:
    context = click.Context(
        command, parent=parent, info_name=name, terminal_width=_WIDTH, **command.context_settings
    )
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            child = command.get_command(context, inner)
            assert child is not None
            yield from _sections(child, context, inner)


def with_instruction_table(page: str) -> str:
    """Return the page with the current table of instructions between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the table: {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{help_text()}\n\n{END}{after}"


def write(directory: Path) -> None:
    """Write cli.md into the directory, and the table of instructions into its routing.md."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cli.md").write_text(page(), encoding="utf-8")
    routing = directory / "routing.md"
    if routing.exists():
        routing.write_text(with_instruction_table(routing.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs"))
