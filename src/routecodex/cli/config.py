"""`routecodex config …`: checks a configuration, lists presets; finds and loads it for other commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from routecodex.cli.tables import print_problem
from routecodex.config import OPEN_ADDRESS, Config, Problem, examine, find_path
from routecodex.config.syntax import MINIMAL_CONFIG
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS, PresetRow, preset_rows

config_option = click.option(
    "--config",
    "-c",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Configuration file; default: $ROUTECODEX_CONFIG_PATH, else config.toml in the user dir "
    "($ROUTECODEX_USER_DIR, else ~/.routecodex).",
)


_NO_FILE = f"""choose another file with --config, or create this one; the smallest content is:
{MINIMAL_CONFIG}
    `routecodex demo` runs without a file"""


def config_path(path: Path | None) -> Path:
    """Return the configuration file of a command."""
    return path if path is not None else find_path(os.environ)


def with_address(config: Config, host: str | None, port: int | None) -> Config:
    """Return the configuration with the host and the port of a command."""
    server = config.server
    if host is not None:
        server = replace(server, host=host)
    if port is not None:
        server = replace(server, port=port)
    return replace(config, server=server)


def examine_file(
    file: Path,
    *,
    with_mode: bool = False,
    environ: Mapping[str, str] = os.environ,
    host: str | None = None,
    port: int | None = None,
    stored_clients: bool = False,
    is_guarded: Callable[[Config], bool] | None = None,
) -> tuple[Config | None, list[Problem]]:
    """Return the configuration, None if it has errors, and all problems, warnings included.

    `with_mode`: warn about keys in the file if other users can read it. An open address needs clients in the
    file or in the store, as `is_guarded` tells; where that is may depend on `host` and `port`, if the command
    line has them. With `stored_clients` it needs none.
    """
    try:
        mode = file.stat().st_mode if with_mode else 0
        text = file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return _unreadable(file, "the file does not exist", _NO_FILE)
    except OSError as exc:
        return _unreadable(file, f"cannot be read: {exc.strerror}", "choose a readable file with --config")
    except UnicodeDecodeError as exc:
        return _unreadable(file, f"is not UTF-8 text (byte {exc.start})", "save it as UTF-8")
    loaded, problems = examine_text(
        text, source=str(file), environ=environ, mode=mode, stored_clients=stored_clients
    )
    if any(problem.place == OPEN_ADDRESS for problem in problems):
        guarded, others = examine_text(
            text, source=str(file), environ=environ, mode=mode, stored_clients=True
        )
        if guarded is not None and (is_guarded or _has_clients)(with_address(guarded, host, port)):
            return guarded, others
    return loaded, problems


def _has_clients(config: Config) -> bool:
    from routecodex.cli.stored_clients import has_stored_clients

    return has_stored_clients(config)


def examine_text(
    text: str,
    *,
    source: str,
    environ: Mapping[str, str] = os.environ,
    mode: int = 0,
    stored_clients: bool = False,
) -> tuple[Config | None, list[Problem]]:
    """Return the configuration, None if it has errors, and all problems, warnings included.

    With `stored_clients` an open address needs no clients in the file.
    """
    loaded, problems = examine(
        text,
        source=source,
        environ=environ,
        presets=PRESETS,
        dialect_type=Dialect,
        mode=mode,
        stored_clients=stored_clients,
    )
    usable = not any(problem.severity == "error" for problem in problems)
    return (loaded if usable else None), problems


def _unreadable(file: Path, message: str, fix: str) -> tuple[None, list[Problem]]:
    return None, [Problem((), message, fix, file=str(file))]


def load_or_exit(
    path: Path | None,
    *,
    with_mode: bool = False,
    host: str | None = None,
    port: int | None = None,
    stored_clients: bool = False,
    is_guarded: Callable[[Config], bool] | None = None,
) -> Config:
    """Return the configuration and print its warnings; if it has errors, print all problems and exit.

    The options are those of `examine_file`.
    """
    loaded, problems = examine_file(
        config_path(path),
        with_mode=with_mode,
        host=host,
        port=port,
        stored_clients=stored_clients,
        is_guarded=is_guarded,
    )
    show(problems)
    if loaded is None:
        raise SystemExit(2)
    return loaded


def show(problems: Iterable[Problem]) -> None:
    """Print problems on stderr: place, message and fix."""
    for problem in problems:
        file = f"{problem.file}:{problem.line}" if problem.line else problem.file
        where = ": ".join(filter(None, (file, problem.path)))
        print_problem(where, severity=problem.severity)
        click.echo(f"    {problem.message}", err=True)
        if problem.fix:
            click.echo(f"    fix: {problem.fix}", err=True)


@click.group()
def config() -> None:
    """Check a configuration file, list presets of providers."""


@config.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print the problems as JSON.")
def check(path: Path | None, as_json: bool) -> None:
    """Check the file; print every problem with its place and how to fix it.

    Exit code 0: the file is valid (warnings are allowed); 2: it has errors.

    \b
    Examples:
      routecodex config check
      routecodex config check --config gateway.toml --json
    """
    file = config_path(path)
    loaded, problems = examine_file(file, with_mode=True)
    if loaded is not None:
        from routecodex.cli.stored_clients import stored_clients, stored_problems

        found = stored_problems(loaded, stored_clients(loaded))
        problems += [replace(problem, file=str(file)) for problem in found]
    if as_json:
        click.echo(_as_json(problems))
    else:
        show(problems)
    if loaded is None:
        raise SystemExit(2)
    if not as_json:
        counts = f"{_counted(len(loaded.providers), 'provider')}, {_counted(len(loaded.routing), 'route')}"
        click.echo(f"{file}: valid, {counts}")


def _counted(count: int, noun: str) -> str:
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


@config.command()
@click.option("--json", "as_json", is_flag=True, help="Print the rows of the catalog as JSON.")
def presets(as_json: bool) -> None:
    """List the presets: addresses and key variables of well-known providers.

    The first protocol of a preset is its default; `protocol = "…"` chooses another.

    \b
    Examples:
      routecodex config presets
      routecodex config presets --json
    """
    from routecodex.cli import tables

    rows = preset_rows()
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode({"presets": rows})).decode())
        return
    titles = ("preset", "provider", "region", "plan", "protocols", "key", "aliases")
    lines = [_preset_cells(row) for row in rows]
    tables.show([tables.Column(title, fixed=title == "preset") for title in titles], lines)


def _preset_cells(row: PresetRow) -> list[str]:
    cells = [row.preset, row.name, row.region, row.plan]
    return [*cells, *(" ".join(words) or "-" for words in (row.base_url, row.env, row.aliases))]
