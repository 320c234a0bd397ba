"""`routecodex config …`: look at a configuration without running it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from routecodex.cli.loading import config_option, config_path, look_at, show
from routecodex.config import Problem


@click.group()
def config() -> None:
    """Check a configuration file."""


@config.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print the problems as JSON.")
def check(path: Path | None, as_json: bool) -> None:
    """Say what is wrong with the file, where, and how to mend it.

    Exit code 0: it can be used (warnings do not count); 2: it cannot.

    \b
    Examples:
      routecodex config check
      routecodex config check --config gateway.toml --json
    """
    file = config_path(path)
    found, problems = look_at(file)
    if as_json:
        click.echo(_as_json(problems))
    else:
        show(problems)
    if found is None:
        raise SystemExit(2)
    if not as_json:
        counts = f"{_many(len(found.providers), 'provider')}, {_many(len(found.routing), 'route')}"
        click.echo(f"{file}: fine, {counts}")


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _as_json(problems: Iterable[Problem]) -> str:
    rows = [
        {
            "file": row.file,
            "line": row.line,
            "path": row.path,
            "severity": row.severity,
            "message": row.message,
            "fix": row.fix,
        }
        for row in problems
    ]
    return msgspec.json.format(msgspec.json.encode(rows)).decode()
