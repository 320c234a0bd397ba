"""Finding and reading the configuration for a command."""

from __future__ import annotations

import os
from pathlib import Path

import click

from routecodex.config import Config, InvalidConfig, Problem, find_path, load
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS

config_option = click.option(
    "--config",
    "-c",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The configuration file; default: $ROUTECODEX_CONFIG_PATH or ~/.routecodex/config.toml.",
)


def config_path(path: Path | None) -> Path:
    """The file a command works on."""
    return path if path is not None else find_path(os.environ)


def load_or_exit(path: Path | None) -> Config:
    """The configuration, or every problem with it on stderr and exit code 2."""
    try:
        return load(config_path(path), os.environ, presets=PRESETS, dialect_type=Dialect)
    except InvalidConfig as exc:
        show(exc.problems)
        raise SystemExit(2) from exc


def show(problems: list[Problem] | tuple[Problem, ...]) -> None:
    """Problems for people: where, what, and the way out."""
    for problem in problems:
        colour = "red" if problem.severity == "error" else "yellow"
        where = f"{problem.file}:{problem.line}" if problem.line else str(problem.file)
        click.echo(click.style(f"{problem.severity}: ", fg=colour) + f"{where}: {problem.path}", err=True)
        click.echo(f"    {problem.message}", err=True)
        if problem.fix:
            click.echo(f"    fix: {problem.fix}", err=True)
