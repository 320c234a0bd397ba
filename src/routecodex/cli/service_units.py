"""Files that describe a service of the user's session: a systemd unit, a launchd agent.

Both start the same command with the same settings. Keys of providers are not part of these files: the service
reads them from `service.env` in the user dir, which only its owner can read.
"""

from __future__ import annotations

import plistlib
import shlex
from pathlib import Path

from msgspec import Struct

MARK = "written by `routecodex service install`"
"""Text by which a file is recognised as one that may be replaced and removed."""

STOP_MARGIN_SECONDS = 10
"""Time beyond the drain of a server until it is killed."""
RESTART_SECONDS = 5
"""Pause before a restart: longer than the limit of systemd, five starts in ten seconds, allows."""
INVALID_CONFIG = 2
"""Exit code of `serve` for an invalid configuration: starting it again does not help."""


class ServiceUnit(Struct, frozen=True, kw_only=True):
    """A gateway that the session's service manager runs."""

    name: str
    command: tuple[str, ...]
    directory: Path
    environ: dict[str, str]
    env_file: Path
    log: Path
    drain_seconds: int

    @property
    def stop_seconds(self) -> int:
        """Seconds after SIGTERM until the service is killed."""
        return self.drain_seconds + STOP_MARGIN_SECONDS


def systemd_unit(unit: ServiceUnit) -> str:
    """Return the text of a unit for `systemctl --user` (systemd.service(5), systemd.exec(5))."""
    variables = [f"Environment={_quoted(f'{name}={value}')}" for name, value in unit.environ.items()]
    return "\n".join(
        [
            f"# {MARK}",
            "[Unit]",
            "Description=RouteCodex gateway",
            "",
            "[Service]",
            "Type=exec",
            f"ExecStart={' '.join(_quoted(word).replace('$', '$$') for word in unit.command)}",
            f"WorkingDirectory={_literal(unit.directory)}",
            *variables,
            f"EnvironmentFile=-{_literal(unit.env_file)}",
            "Restart=on-failure",
            f"RestartSec={RESTART_SECONDS}",
            f"RestartPreventExitStatus={INVALID_CONFIG}",
            # Workers end with their parent, which drains them.
            "KillMode=mixed",
            "KillSignal=SIGTERM",
            f"TimeoutStopSec={unit.stop_seconds}",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def _literal(path: Path) -> str:
    """Write a path that takes the rest of a line; `%` begins a specifier of systemd."""
    return str(path).replace("%", "%%")


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def launchd_agent(unit: ServiceUnit) -> str:
    """Return the property list of an agent for `launchctl` (launchd.plist(5))."""
    # launchd has no file of variables, so a shell reads it before it becomes the gateway.
    file = shlex.quote(str(unit.env_file))
    script = f"set -a; if [ -r {file} ]; then . {file}; fi; exec {shlex.join(unit.command)}"
    agent = {
        "Label": unit.name,
        "ProgramArguments": ["/bin/sh", "-c", script],
        "WorkingDirectory": str(unit.directory),
        "EnvironmentVariables": unit.environ,
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": RESTART_SECONDS,
        "ExitTimeOut": unit.stop_seconds,
        "StandardOutPath": str(unit.log),
        "StandardErrorPath": str(unit.log),
    }
    head, doctype, rest = plistlib.dumps(agent, sort_keys=False).decode().split("\n", 2)
    return f"{head}\n{doctype}\n<!-- {MARK} -->\n{rest}"
