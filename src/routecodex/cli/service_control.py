"""Service managers of a user's session: systemd and launchd, each called through its own command.

A file that `routecodex service install` has not written is neither replaced nor removed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from routecodex.cli.service_units import MARK, ServiceUnit, launchd_agent, systemd_unit

_CALL_SECONDS = 120
_POLL_SECONDS = 0.2


class ServiceFailed(Exception):
    """The service manager is not there or refused; the text says what to do."""


class ServiceState(Struct, frozen=True, kw_only=True):
    """State of a service as its manager reports it."""

    running: bool
    state: str
    failed: bool = False
    pid: int = 0
    enabled: bool = False


class ServiceControl(Protocol):
    """Installs, removes and shows one service."""

    kind: str
    unit_file: Path

    def text(self, unit: ServiceUnit) -> str:
        """Return the content of the unit file."""

    def plan(self) -> list[tuple[str, ...]]:
        """Return the commands that install the service once its file is written."""

    def install(self, unit: ServiceUnit) -> None:
        """Write the file, and start the service now and at every login; raise ServiceFailed."""

    def uninstall(self, stop_seconds: int) -> None:
        """Stop the service and remove its file; raise ServiceFailed."""

    def state(self) -> ServiceState:
        """Return the state of the service; raise ServiceFailed if its manager does not answer."""

    def variables(self) -> dict[str, str]:
        """Return the variables that every service of the session gets."""

    def log_command(self) -> str:
        """Return the command that shows the output of the service."""


def find_control(name: str, *, platform: str, environ: Mapping[str, str]) -> ServiceControl:
    """Return the service manager of this platform; raise ServiceFailed if there is none."""
    if platform not in _CONTROLS:
        raise ServiceFailed(f"services need systemd (Linux) or launchd (macOS); this is {platform!r}")
    command, make = _CONTROLS[platform]
    if shutil.which(command, path=environ.get("PATH")) is None:
        raise ServiceFailed(f"there is no service manager: {command!r} is not on PATH")
    return make(name, home=Path(environ.get("HOME") or Path.home()), environ=environ)


class _UnitFile:
    """The file of a service."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, text: str) -> str | None:
        """Write the file and return its last content."""
        before = self.read()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(text, "utf-8")
        except OSError as exc:
            raise ServiceFailed(f"cannot write {self.path}: {exc.strerror}") from exc
        return before

    def restore(self, text: str | None) -> None:
        """Put the last content back."""
        if text is None:
            self.path.unlink(missing_ok=True)
        else:
            self.path.write_text(text, "utf-8")

    def read(self) -> str | None:
        """Return the content, None without a file; raise ServiceFailed if it is not ours."""
        try:
            text = self.path.read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as exc:
            raise ServiceFailed(f"cannot read {self.path}: {exc}") from exc
        if MARK not in text:
            raise ServiceFailed(f"{self.path} was not {MARK}; remove it, or choose another --name")
        return text


class _Commands:
    """Runs a service manager's command."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)

    def call(self, *command: str, may_fail: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a command; unless it may fail, raise ServiceFailed with its output if it does."""
        try:
            done = subprocess.run(  # noqa: S603  # fixed commands; the only argument is a checked name
                command, env=self._environ, capture_output=True, text=True, timeout=_CALL_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise ServiceFailed(f"`{shlex.join(command)}` failed: {exc}") from exc
        if done.returncode and not may_fail:
            output = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
            raise ServiceFailed(f"`{shlex.join(command)}` failed: {output}")
        return done


class SystemdUnits:
    """Units of `systemctl --user`."""

    kind = "systemd"

    def __init__(self, name: str, *, home: Path, environ: Mapping[str, str]) -> None:
        self._unit = f"{name}.service"
        self._commands = _Commands(environ)
        config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        self.unit_file = config / "systemd/user" / self._unit
        self._file = _UnitFile(self.unit_file)

    def text(self, unit: ServiceUnit) -> str:
        return systemd_unit(unit)

    def plan(self) -> list[tuple[str, ...]]:
        verbs = (("daemon-reload",), ("enable", self._unit), ("restart", self._unit))
        return [("systemctl", "--user", *verb) for verb in verbs]

    def install(self, unit: ServiceUnit) -> None:
        before = self._file.write(self.text(unit))
        try:
            for command in self.plan():
                self._commands.call(*command)
        except ServiceFailed:
            self._file.restore(before)
            raise

    def uninstall(self, stop_seconds: int) -> None:
        self._file.read()
        self._commands.call("systemctl", "--user", "disable", "--now", self._unit)
        self._file.restore(None)
        self._commands.call("systemctl", "--user", "daemon-reload")
        self._commands.call("systemctl", "--user", "reset-failed", self._unit, may_fail=True)

    def state(self) -> ServiceState:
        fields = "ActiveState,SubState,MainPID,UnitFileState,Result"
        done = self._commands.call("systemctl", "--user", "show", self._unit, f"--property={fields}")
        found = _assignments(done.stdout)
        active, result = found.get("ActiveState", "unknown"), found.get("Result", "success")
        detail = found.get("SubState", "") if result == "success" else result
        return ServiceState(
            running=active in ("active", "reloading"),
            state=f"{active} ({detail})" if detail and detail != active else active,
            failed=result != "success",
            pid=int(found.get("MainPID") or 0),
            enabled=found.get("UnitFileState") == "enabled",
        )

    def variables(self) -> dict[str, str]:
        done = self._commands.call("systemctl", "--user", "show-environment", may_fail=True)
        return _assignments(done.stdout)

    def log_command(self) -> str:
        return f"journalctl --user -u {self._unit}"


class LaunchdAgents:
    """Agents of `launchctl` in the domain of the user's session."""

    kind = "launchd"

    def __init__(self, name: str, *, home: Path, environ: Mapping[str, str], uid: int | None = None) -> None:
        self._domain = f"gui/{os.getuid() if uid is None else uid}"
        self._target = f"{self._domain}/{name}"
        self._commands = _Commands(environ)
        self.unit_file = home / "Library/LaunchAgents" / f"{name}.plist"
        self._file = _UnitFile(self.unit_file)

    def text(self, unit: ServiceUnit) -> str:
        return launchd_agent(unit)

    def plan(self) -> list[tuple[str, ...]]:
        return [
            ("launchctl", "enable", self._target),
            ("launchctl", "bootstrap", self._domain, str(self.unit_file)),
        ]

    def install(self, unit: ServiceUnit) -> None:
        before = self._file.write(self.text(unit))
        try:
            unit.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._stop(unit.stop_seconds)
            for command in self.plan():
                self._commands.call(*command)
        except (ServiceFailed, OSError) as exc:
            self._file.restore(before)
            raise exc if isinstance(exc, ServiceFailed) else ServiceFailed(str(exc)) from exc

    def uninstall(self, stop_seconds: int) -> None:
        self._file.read()
        self._stop(stop_seconds)
        self._file.restore(None)

    def _stop(self, seconds: int) -> None:
        """Unload the agent; `bootout` returns before it has stopped, and `bootstrap` fails until then."""
        if not self._is_loaded():
            return
        self._commands.call("launchctl", "bootout", self._target)
        if not wait_until(lambda: not self._is_loaded(), seconds):
            raise ServiceFailed(f"{self._target} is still running {seconds} s after it was told to stop")

    def _is_loaded(self) -> bool:
        return self._commands.call("launchctl", "print", self._target, may_fail=True).returncode == 0

    def state(self) -> ServiceState:
        done = self._commands.call("launchctl", "print", self._target, may_fail=True)
        if done.returncode:
            return ServiceState(running=False, state="not loaded")
        found = dict(re.findall(r"^\t(state|pid|last exit code) = (.+)$", done.stdout, re.MULTILINE))
        state = found.get("state", "unknown")
        code = found.get("last exit code", "")
        detail = f" (last exit code {code})" if code.isdigit() and code != "0" else ""
        return ServiceState(
            running=state == "running",
            state=state + detail,
            failed=bool(detail) and state != "running",
            pid=int(found.get("pid") or 0),
            enabled=True,
        )

    def variables(self) -> dict[str, str]:
        return {}

    def log_command(self) -> str:
        text = self._file.read() or ""
        found = re.search(r"<key>StandardErrorPath</key>\s*<string>(.*?)</string>", text)
        return f"tail {shlex.quote(found[1] if found else '')}"


_CONTROLS: dict[str, tuple[str, Callable[..., ServiceControl]]] = {
    "linux": ("systemctl", SystemdUnits),
    "darwin": ("launchctl", LaunchdAgents),
}
"""Command and class of the service manager, by platform."""


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until the condition holds; return False if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _assignments(text: str) -> dict[str, str]:
    """Read lines of the form NAME=value."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: value for name, equals, value in pairs if equals}
