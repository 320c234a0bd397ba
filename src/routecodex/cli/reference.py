"""Writes the reference of the command line from the commands' own help.

`python -m routecodex.cli.reference` writes docs/cli.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from routecodex.cli import main

_WIDTH = 100
_INTRO = """\
# Command line

What `routecodex` can do, in the words of its own `--help`. This page is generated from the code:
`python -m routecodex.cli.reference`.

- **Servers announce themselves** in the user dir (`~/.routecodex`, or `ROUTECODEX_USER_DIR`) while they run.
  Commands speak to all of them, or to the one named with `--server`; one that was killed is reported on
  stderr and skipped.
- **`--json`** prints the same for scripts. Tables are for people: they fit the terminal and have colours
  only there, never with `NO_COLOR` set.
- **Exit codes** are 0 (done), 1 (a server refused, or something failed), 2 (wrong arguments or
  configuration) and 3 (no server is running).
- **Completion** for bash, zsh and fish: `routecodex completion --help`.
"""


def page() -> str:
    """The whole page."""
    return _INTRO + "".join(f"\n{section}" for section in _sections(main, None, "routecodex"))


def _sections(command: click.Command, above: click.Context | None, name: str) -> Iterator[str]:
    context = click.Context(
        command, parent=above, info_name=name, terminal_width=_WIDTH, **command.context_settings
    )
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from _sections(found, context, inner)


def write(directory: Path) -> None:
    """Writes the page into the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cli.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs"))
