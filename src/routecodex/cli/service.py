"""`routecodex service …`: a gateway that systemd or launchd runs in the user's session, without root."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from routecodex.cli.admin_client import AdminClient, AnnouncedServer, announcements, is_running, user_dir
from routecodex.cli.config import config_option, config_path, examine_file
from routecodex.cli.config import show as show_problems
from routecodex.cli.servers import EXIT_CODES, FAILED, NO_SERVER, json_option, print_json
from routecodex.cli.service_control import (
    ServiceControl,
    ServiceFailed,
    ServiceState,
    find_control,
    wait_until,
)
from routecodex.cli.service_units import ServiceUnit
from routecodex.cli.stored_clients import load_server
from routecodex.cli.tables import print_problem
from routecodex.cli.views import facts
from routecodex.config import Config

_Result = TypeVar("_Result")
_READY_SECONDS = 30.0

_PASSED_ON = ("ROUTECODEX_USER_DIR", "ROUTECODEX_SESSION_DIR", "ROUTECODEX_PURE", "PYTHONPATH")
"""Variables of this command that become those of the service, if they are set."""

_UVX_CACHE = re.compile(r"[/\\](archive-v\d+|environments-v\d+)[/\\]")
"""Folders of uv's cache from which `uvx` runs a package; `uv cache clean` removes them."""

_SHELL_SIGNS = frozenset("'\"\\\n\r\0`")


def _check_name(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", value):
        raise click.BadParameter("use letters, digits, '.', '-' and '_'")
    return value


name_option = click.option(
    "--name",
    default="routecodex",
    show_default=True,
    callback=_check_name,
    help="Name of the service, to run several.",
)


@click.group()
def service() -> None:
    """Run the gateway as a service of your session: systemd on Linux, launchd on macOS."""


@service.command(epilog=EXIT_CODES)
@config_option
@click.option("--host", help="Address to listen on, instead of server.host.")
@click.option("--port", "-p", type=click.IntRange(1, 65535), help="Port, instead of server.port.")
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes.")
@click.option(
    "--env",
    "variables",
    metavar="NAME",
    multiple=True,
    help="Save the value of this variable for the service, in service.env in the user dir; may be repeated.",
)
@name_option
@click.option("--dry-run", is_flag=True, help="Show what would be written and run; change nothing.")
@click.option("--print", "prints", is_flag=True, help="Print only the unit file; change nothing.")
def install(
    *,
    path: Path | None,
    host: str | None,
    port: int | None,
    workers: int,
    variables: tuple[str, ...],
    name: str,
    dry_run: bool,
    prints: bool,
) -> None:
    """Start the gateway now and whenever you log in, and restart it if it fails.

    Needs no root. A service does not see the variables of your shell: it reads keys from service.env in the
    user dir, one NAME=value per line. Run the command again to change its options.

    \b
    Examples:
      routecodex service install
      routecodex service install --config gateway.toml --port 8080 --env ZAI_API_KEY
      routecodex service install --dry-run
    """
    _refuse_cache(sys.prefix)
    control = _control_or_exit(name)
    file = config_path(path).absolute()
    config = load_server(file, host=host, port=port)
    options = {"--host": host, "--port": port, "--workers": workers if workers > 1 else None}
    unit = _unit(name, file, options, config)
    saved = _env_values(variables)
    if prints:
        click.echo(control.text(unit), nl=False)
        return
    _require_variables(file, unit, saved, {} if dry_run else _try(control.variables))
    if dry_run:
        _show_plan(control, unit, saved)
        return
    _refuse_other_server(config.identity, control)
    _save_variables(unit.env_file, saved)
    _try(lambda: control.install(unit))
    _report(control, config.identity)


def _refuse_cache(prefix: str) -> None:
    if _UVX_CACHE.search(prefix):
        print_problem(
            f"this command runs from the cache of uvx ({prefix}), which may be removed at any time\n"
            "    fix: install it first with `uv tool install routecodex` or `pipx install routecodex`"
        )
        raise SystemExit(FAILED)


def _control_or_exit(name: str) -> ServiceControl:
    return _try(lambda: find_control(name, platform=sys.platform, environ=os.environ))


def _try(call: Callable[[], _Result]) -> _Result:
    """Return the result of a call; if the service manager fails, print why and exit."""
    try:
        return call()
    except ServiceFailed as exc:
        _exit_with(f"{exc}")


def _exit_with(message: str) -> NoReturn:
    print_problem(
        f"{message}\n    `routecodex start` runs a gateway in the background without a service manager"
    )
    raise SystemExit(FAILED)


def _unit(name: str, file: Path, options: Mapping[str, str | int | None], config: Config) -> ServiceUnit:
    given = [(option, str(value)) for option, value in options.items() if value is not None]
    command = [sys.executable, "-m", "routecodex", "serve", "--config", str(file)]
    environ = {name: os.environ[name] for name in _PASSED_ON if os.environ.get(name)}
    unit = ServiceUnit(
        name=name,
        command=(*command, *(word for pair in given for word in pair)),
        directory=file.parent,
        environ=environ,
        env_file=user_dir().absolute() / "service.env",
        log=user_dir().absolute() / "logs" / f"{name}.service.log",
        drain_seconds=config.server.drain_seconds,
    )
    _refuse_control_characters([*unit.command, *environ.values(), str(unit.env_file)])
    return unit


def _refuse_control_characters(texts: Iterable[str]) -> None:
    for text in texts:
        if not text.isprintable():
            raise click.UsageError(f"{text!r} has a control character, which a unit file cannot have")


def _env_values(names: Iterable[str]) -> dict[str, str]:
    """Return the values of variables that are to be saved for the service."""
    values = {}
    for name in names:
        value = os.environ.get(name)
        if not value:
            raise click.UsageError(f"--env {name}: the variable is not set")
        if _SHELL_SIGNS & set(value):
            raise click.UsageError(f"--env {name}: its value has quotes, backslashes or line ends")
        values[name] = value
    return values


def _require_variables(
    file: Path, unit: ServiceUnit, saved: Mapping[str, str], session: Mapping[str, str]
) -> None:
    """Exit if the configuration is valid here, but not with the variables that the service will have."""
    environ = {
        "HOME": os.environ.get("HOME", ""),
        **session,
        **unit.environ,
        **_read_variables(unit.env_file),
    }
    loaded, problems = examine_file(file, environ={**environ, **saved})
    if loaded is not None:
        return
    show_problems(problem for problem in problems if problem.severity == "error")
    click.echo(
        "A service does not see the variables of your shell. Save them for it with `--env NAME`,\n"
        f"or write NAME=value lines into {unit.env_file}.",
        err=True,
    )
    raise SystemExit(2)


def _read_variables(file: Path) -> dict[str, str]:
    try:
        words = shlex.split(file.read_text("utf-8"), comments=True)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        print_problem(f"cannot read {file}: {exc}; write one NAME=value per line")
        raise SystemExit(2) from exc
    return dict(word.split("=", 1) for word in words if "=" in word)


def _save_variables(file: Path, values: Mapping[str, str]) -> None:
    """Add variables to the file, which only its owner can read; the other lines stay."""
    if not values:
        return
    try:
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
        kept = [line for line in lines if line.partition("=")[0].strip() not in values]
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(0o600)
        file.chmod(0o600)
        file.write_text("".join(f"{line}\n" for line in [*kept, *map(_assignment, values.items())]), "utf-8")
    except OSError as exc:
        print_problem(f"cannot write {file}: {exc.strerror}")
        raise SystemExit(FAILED) from exc


def _assignment(pair: tuple[str, str]) -> str:
    """Write a line that a shell and systemd read alike."""
    name, value = pair
    return f"{name}='{value}'"


def _show_plan(control: ServiceControl, unit: ServiceUnit, saved: Mapping[str, str]) -> None:
    if saved:
        click.echo(f"would save in {unit.env_file}: {', '.join(saved)}")
    click.echo(f"would write {control.unit_file}:\n")
    for line in control.text(unit).splitlines():
        click.echo(f"    {line}".rstrip())
    click.echo("\nwould run:")
    for command in control.plan():
        click.echo(f"    {shlex.join(command)}")


def _announced(server_id: str) -> AnnouncedServer | None:
    found = (server for server in announcements() if server.id == server_id and is_running(server.pid))
    return next(found, None)


def _refuse_other_server(server_id: str, control: ServiceControl) -> None:
    """Exit if the server runs already, but not as this service, which could not listen then."""
    server = _announced(server_id)
    if server is None or not AdminClient(server).is_ready():
        return
    if control.unit_file.exists() and _try(control.state).running:
        return
    print_problem(
        f"{server.id} is already running at {server.url} (pid {server.pid}), but not as this service\n"
        f"    fix: stop it first with `routecodex stop {server.id}`"
    )
    raise SystemExit(FAILED)


def _report(control: ServiceControl, server_id: str) -> None:
    """Wait until the gateway answers and print its address; exit if it does not."""
    states: list[ServiceState] = []

    def settled() -> bool:
        states.append(_try(control.state))
        return states[-1].failed or _is_ready(server_id)

    wait_until(settled, _READY_SECONDS)
    server = _announced(server_id)
    if server is None or not _is_ready(server_id):
        print_problem(
            f"the service is installed, but the gateway does not answer; its state is: {states[-1].state}\n"
            f"    fix: see `{control.log_command()}`, then run this command again"
        )
        raise SystemExit(FAILED)
    facts({"service": str(control.unit_file), "url": server.url, "pid": str(server.pid)})
    if control.kind == "systemd":
        click.echo("It runs while you are logged in; `loginctl enable-linger` keeps it running after that.")


def _is_ready(server_id: str) -> bool:
    server = _announced(server_id)
    return server is not None and AdminClient(server).is_ready()


@service.command(epilog=EXIT_CODES)
@name_option
@click.option("--dry-run", is_flag=True, help="Show what would be removed; change nothing.")
def uninstall(name: str, dry_run: bool) -> None:
    """Stop the service after its requests in flight, and remove its unit file.

    Configuration, sessions and service.env stay.

    \b
    Example:
      routecodex service uninstall
    """
    control = _control_or_exit(name)
    if not control.unit_file.exists():
        click.echo(f"the service {name!r} is not installed: {control.unit_file} does not exist", err=True)
        return
    if dry_run:
        click.echo(f"would stop {name!r} and remove {control.unit_file}")
        return
    _try(lambda: control.uninstall(_stop_seconds(control.unit_file)))
    click.echo(f"removed {control.unit_file}")


def _stop_seconds(unit_file: Path) -> int:
    """Return the time that the unit file gives the service to stop."""
    text = unit_file.read_text("utf-8", errors="replace")
    found = re.search(r"TimeoutStopSec=(\d+)|<key>ExitTimeOut</key>\s*<integer>(\d+)", text)
    return int(found[1] or found[2]) if found else 0


@service.command(epilog=EXIT_CODES)
@name_option
@json_option
def status(name: str, as_json: bool) -> None:
    """Show whether the service is installed, starts at login and runs.

    \b
    Example:
      routecodex service status --json
    """
    control = _control_or_exit(name)
    fields: dict[str, Any] = {"name": name, "kind": control.kind, "installed": control.unit_file.exists()}
    if not fields["installed"]:
        if as_json:
            print_json({**fields, "running": False})
        else:
            click.echo(
                f"the service {name!r} is not installed; `routecodex service install` does it", err=True
            )
        raise SystemExit(NO_SERVER)
    state: ServiceState = _try(control.state)
    fields |= {"file": str(control.unit_file), "enabled": state.enabled, "state": state.state}
    fields |= {"running": state.running, "pid": state.pid or None}
    if as_json:
        print_json(fields)
    else:
        _show_status(fields, control.log_command())
    if not state.running:
        raise SystemExit(NO_SERVER)


def _show_status(fields: Mapping[str, Any], log_command: str) -> None:
    shown = {"service": f"{fields['name']} ({fields['kind']})", "file": fields["file"]}
    shown |= {"at login": "starts" if fields["enabled"] else "does not start", "state": fields["state"]}
    shown |= {"pid": str(fields["pid"] or "-"), "output": log_command}
    facts(shown)
