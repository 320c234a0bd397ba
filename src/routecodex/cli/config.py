"""`routecodex config …`: look at a configuration without running it."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from routecodex.cli.loading import config_option, config_path, show
from routecodex.config import examine
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS


@click.group()
def config() -> None:
    """Check a configuration file."""


@config.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print the problems as JSON.")
def check(path: Path | None, as_json: bool) -> None:
    """Say what is wrong with the file, where, and how to mend it.

    Exit code 0: it can be used (warnings do not count); 2: it cannot.
    """
    file = config_path(path)
    try:
        text = file.read_text("utf-8")
    except OSError as exc:
        click.echo(f"error: cannot read {file}: {exc.strerror}", err=True)
        raise SystemExit(2) from exc
    found, problems = examine(
        text, source=str(file), environ=os.environ, presets=PRESETS, dialect_type=Dialect
    )
    if as_json:
        rows = [
            {
                "file": str(row.file),
                "line": row.line,
                "path": row.path,
                "severity": row.severity,
                "message": row.message,
                "fix": row.fix,
            }
            for row in problems
        ]
        click.echo(msgspec.json.format(msgspec.json.encode(rows)).decode())
    else:
        show(problems)
    if found is None or any(problem.severity == "error" for problem in problems):
        raise SystemExit(2)
    if not as_json:
        click.echo(f"{file}: fine, {len(found.providers)} providers, {len(found.routing)} routes")
