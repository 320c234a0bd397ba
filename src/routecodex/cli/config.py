"""`routecodex config …`: look at a configuration without running it.

Finding and reading the configuration for a command.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from routecodex.config import Config, Problem, examine, find_path
from routecodex.config.load import MINIMAL_CONFIG
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS

config_option = click.option(
    "--config",
    "-c",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The configuration file; default: $ROUTECODEX_CONFIG_PATH, else config.toml in the user dir "
    "($ROUTECODEX_USER_DIR, else ~/.routecodex).",
)


_NO_FILE = f"""name another with --config, or create it; the smallest one is:
{MINIMAL_CONFIG}
    `routecodex demo` needs none"""


def config_path(path: Path | None) -> Path:
    """The file a command works on."""
    return path if path is not None else find_path(os.environ)


def look_at(file: Path) -> tuple[Config | None, list[Problem]]:
    """The configuration, None when it cannot be used, and every problem with it, warnings included."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return _unreadable(file, "there is no such file", _NO_FILE)
    except OSError as exc:
        return _unreadable(file, f"cannot be read: {exc.strerror}", "name a readable file with --config")
    except UnicodeDecodeError as exc:
        return _unreadable(file, f"is not UTF-8 text (byte {exc.start})", "save it as UTF-8")
    found, problems = examine(
        text, source=str(file), environ=os.environ, presets=PRESETS, dialect_type=Dialect
    )
    usable = not any(problem.severity == "error" for problem in problems)
    return (found if usable else None), problems


def _unreadable(file: Path, what: str, fix: str) -> tuple[None, list[Problem]]:
    return None, [Problem((), what, fix, file=str(file))]


def load_or_exit(path: Path | None) -> Config:
    """The configuration, its warnings on stderr; or every problem with it there, and exit code 2."""
    found, problems = look_at(config_path(path))
    show(problems)
    if found is None:
        raise SystemExit(2)
    return found


def show(problems: Iterable[Problem]) -> None:
    """Problems for people: where, what, and the way out."""
    for problem in problems:
        colour = "red" if problem.severity == "error" else "yellow"
        file = f"{problem.file}:{problem.line}" if problem.line else problem.file
        where = ": ".join(filter(None, (file, problem.path)))
        click.echo(click.style(f"{problem.severity}: ", fg=colour) + where, err=True)
        click.echo(f"    {problem.message}", err=True)
        if problem.fix:
            click.echo(f"    fix: {problem.fix}", err=True)


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
