"""Finds an installed agent and its version, without starting it where possible."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from routecodex.cli.agents.agent import Agent

_VERSION = re.compile(r"\d+\.\d+(?:[-+.][0-9A-Za-z]+)*")
_SECONDS = 20.0
_MOST_PARENTS = 5


class _Package(Struct):
    """The fields of a package.json that name a program."""

    name: str = ""
    version: str = ""


def find_executable(agent: Agent, environ: Mapping[str, str], exe: str | None = None) -> Path | None:
    """Return the agent's program: `exe` if it is given, else from PATH, else where its installer puts it."""
    search = environ.get("PATH", os.defpath)
    if exe is not None:
        found = shutil.which(os.path.expanduser(exe), path=search)
        return Path(found).absolute() if found else None
    names = (shutil.which(name, path=search) for name in agent.executables)
    home = Path(environ.get("HOME") or Path.home())
    places = (shutil.which(home / place) for place in agent.places)
    first = next(filter(None, (*names, *places)), None)
    return Path(first).absolute() if first else None


def find_version(agent: Agent, executable: Path, environ: Mapping[str, str]) -> str | None:
    """Return the version of an installed agent; None if it does not tell."""
    return _packaged_version(agent, executable) or _printed_version(executable, environ)


def _packaged_version(agent: Agent, executable: Path) -> str | None:
    """Return the version in the npm package that holds the program.

    Gemini CLI creates files in the home directory even for `--version`, and takes a second for it.
    """
    real = Path(os.path.realpath(executable))
    for folder in list(real.parents)[:_MOST_PARENTS]:
        try:
            package = msgspec.json.decode((folder / "package.json").read_bytes(), type=_Package)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            continue
        # Packages for one platform add its name.
        names = (agent.package, *agent.other_packages)
        if any(package.name == name or package.name.startswith(f"{name}-") for name in names):
            return package.version or None
    return None


def _printed_version(executable: Path, environ: Mapping[str, str]) -> str | None:
    try:
        ended = subprocess.run(  # noqa: S603  # the program that the person asked to run
            [str(executable), "--version"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(ended.stdout.decode(errors="replace"))
    return found.group() if found and ended.returncode == 0 else None


def not_installed(agent: Agent, exe: str | None = None) -> str:
    """Return the message for an agent that is not installed, with the command that installs it."""
    names = " or ".join(repr(name) for name in agent.executables)
    missing = f"{exe!r} is not a program" if exe else f"no {names} in PATH"
    return f"{agent.title} is not installed ({missing}); install it with: {agent.install}"
