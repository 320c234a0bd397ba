"""Compared programs: installed on first use, each into its own folder under bench/peers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PEERS = Path(__file__).parent / "peers"
INSTALL_SECONDS = 900
PY_SPY = "py-spy==0.4.3"
SYSTEM_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


class Unavailable(Exception):
    """A system cannot be installed or started here; the message says why."""


def _run(command: Sequence[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{what} could not be installed: {error}") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(f"{what} could not be installed: {lines[-1] if lines else done.returncode}")


def _installed(folder: Path, what: str) -> bool:
    marker = folder / "installed.txt"
    return marker.exists() and marker.read_text() == what


def python_package(name: str, requirement: str) -> Path:
    """Return the folder of a virtual environment with the package."""
    folder = PEERS / name
    # Hidden, so that checkers which walk the tree skip it.
    environment = folder / ".venv"
    if not _installed(folder, requirement):
        print(f"installing {requirement} into {folder.name}/ ...", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(environment)], requirement)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        _run([*pip, "install", "--quiet", requirement], requirement)
        (folder / "installed.txt").write_text(requirement)
    return environment


def py_spy() -> str:
    """Return py-spy, the sampler of Python stacks; installed like the peers."""
    return str(python_package("py-spy", PY_SPY) / "bin" / "py-spy")


def node_packages(name: str, *packages: str) -> Path:
    """Return the node_modules folder with the packages."""
    what = " ".join(packages)
    folder = PEERS / name
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise Unavailable(f"{what} needs node and npm on the PATH")
    if not _installed(folder, what):
        print(f"installing {what} into {folder.name}/ ...", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        quiet = ["--no-audit", "--no-fund", "--legacy-peer-deps"]
        _run([npm, "install", *quiet, "--prefix", str(folder), *packages], what)
        (folder / "installed.txt").write_text(what)
    return folder / "node_modules"


def system_nginx() -> str:
    """Return the nginx program; installed by the system's package manager if permitted."""
    return _system_program("nginx", package="nginx-light")


def system_redis() -> str:
    """Return the Redis server; installed by the system's package manager if permitted."""
    return _system_program("redis-server", package="redis-server")


def _system_program(name: str, *, package: str) -> str:
    found = shutil.which(name, path=SYSTEM_PATH)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {package} ...", file=sys.stderr)
        _run(["apt-get", "install", "-y", package], name)
        found = shutil.which(name, path=SYSTEM_PATH)
    if found is None:
        raise Unavailable(f"{name} is not installed: install it with the system's package manager")
    return found
