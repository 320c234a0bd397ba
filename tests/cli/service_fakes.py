"""`systemctl` and `launchctl` for tests: programs on PATH that write down their calls.

`systemctl restart` really runs the command of the unit file, with the variables that systemd would give it,
and `disable --now` ends it with the signal of the unit file.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types of its own

_SYSTEMCTL = """
import json, os, pathlib, shlex, signal, subprocess, sys
here = pathlib.Path(__file__).parent
call = sys.argv[1:]
with open(here / "calls", "a") as calls:
    calls.write(json.dumps(call) + "\\n")
state = here / "pid"
if (here / "fails").exists() and (here / "fails").read_text() in call:
    sys.exit("Failed to connect to bus: No medium found")
def fields(unit):
    file = pathlib.Path(os.environ["HOME"], ".config/systemd/user", unit)
    lines = [line.split("=", 1) for line in file.read_text().splitlines() if "=" in line]
    return {name: value for name, value in lines if name != "Environment"}, [
        shlex.split(value)[0].split("=", 1) for name, value in lines if name == "Environment"
    ]
def alive():
    try:
        os.kill(int(state.read_text()), 0)
        return True
    except (OSError, ValueError):
        return False
verb, *rest = [word for word in call if word != "--user"]
if verb == "restart":
    unit, variables = fields(rest[0])
    env_file = pathlib.Path(unit["EnvironmentFile"].removeprefix("-").replace("%%", "%"))
    secret = shlex.split(env_file.read_text(), comments=True) if env_file.exists() else []
    environ = {"HOME": os.environ["HOME"], "PATH": os.environ["PATH"], **dict(variables)}
    environ.update(word.split("=", 1) for word in secret)
    words = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(unit["ExecStart"])]
    with open(here / "output", "wb") as output:
        folder = unit["WorkingDirectory"].replace("%%", "%")
        child = subprocess.Popen(
            words, env=environ, cwd=folder, stdout=output, stderr=output, start_new_session=True
        )
    state.write_text(str(child.pid))
elif verb == "disable":
    unit, _ = fields(rest[-1])
    if alive():
        os.kill(int(state.read_text()), getattr(signal, unit["KillSignal"]))
elif verb == "show":
    running = alive()
    print("ActiveState=" + ("active" if running else "failed"))
    print("SubState=" + ("running" if running else "failed"))
    print("Result=" + ("success" if running else "exit-code"))
    print("MainPID=" + (state.read_text() if running else "0"))
    print("UnitFileState=enabled")
elif verb == "show-environment":
    print("PATH=/usr/bin")
"""

_LAUNCHCTL = """
import json, pathlib, sys
here = pathlib.Path(__file__).parent
call = sys.argv[1:]
with open(here / "calls", "a") as calls:
    calls.write(json.dumps(call) + "\\n")
loaded = here / "loaded"
if call[0] == "bootstrap":
    if (here / "fails").exists():
        sys.exit("Bootstrap failed: 5: Input/output error")
    loaded.touch()
elif call[0] == "bootout":
    loaded.unlink()
elif call[0] == "print":
    if not loaded.exists():
        sys.exit("Could not find service")
    shown = here / "shown"
    print(shown.read_text() if shown.exists() else "x = {\\n\\tstate = running\\n\\tpid = 42\\n}")
"""


class FakeCommand:
    """A program that stands in for a service manager's command."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        program = folder / name
        folder.mkdir(parents=True)
        program.write_text(
            f"#!{sys.executable}\n{_SYSTEMCTL if name == 'systemctl' else _LAUNCHCTL}", "utf-8"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    @property
    def path(self) -> str:
        """PATH with the program in front."""
        return f"{self._folder}:{os.environ['PATH']}"

    def calls(self) -> list[list[str]]:
        """Calls of the program, in order."""
        file = self._folder / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def fail_at(self, word: str) -> None:
        """Let calls with this word fail."""
        (self._folder / "fails").write_text(word)

    def show(self, text: str) -> None:
        """Let `launchctl print` show this."""
        (self._folder / "shown").write_text(text)

    def output(self) -> str:
        """Output of the command that `systemctl restart` ran last."""
        return (self._folder / "output").read_text()

    def end(self) -> None:
        """End the command that `systemctl restart` ran last, if it still runs."""
        file = self._folder / "pid"
        if file.exists() and psutil.pid_exists(int(file.read_text())):
            process = psutil.Process(int(file.read_text()))
            process.kill()
            psutil.wait_procs([process], timeout=10)
