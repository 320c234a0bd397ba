"""Builds the distributions: `python -m compile.wheels` writes a binary wheel, a pure wheel and an sdist.

The tools come from `requirements/build.lock` into a temporary environment. Only the standard library is
needed to run this.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ("runtime.lock", "build.lock")
"""Locks of the tools; the sources' own imports are needed too, to compile them."""


def python_of(venv: Path) -> Path:
    """Return the interpreter of a virtual environment."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def create(venv: Path) -> Path:
    """Create a virtual environment unless it is there, and return its interpreter."""
    if not python_of(venv).exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    return python_of(venv)


def pip(python: Path, *arguments: str) -> None:
    """Run pip in an environment."""
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


def install_locks(python: Path, *names: str) -> None:
    """Install the packages of lock files, checked by their hashes."""
    files = [part for name in names for part in ("-r", str(ROOT / "requirements" / name))]
    pip(python, "install", "--require-hashes", *files)


@contextlib.contextmanager
def build_tools() -> Iterator[Path]:
    """Yield the interpreter of an environment with the tools, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="routecodex-build-") as folder:
        python = create(Path(folder) / "venv")
        install_locks(python, *LOCKS)
        yield python


def build(python: Path, target: str, into: Path, *, mode: str = "auto") -> Path:
    """Build a `wheel` or an `sdist` into a directory and return its file; `mode` is one of `hook.MODES`."""
    environ = {**os.environ, "ROUTECODEX_COMPILE": mode}
    environ.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory() as folder:
        command = [str(python), "-m", "hatchling", "build", "-t", target, "-d", folder]
        (_run_quietly if mode == "0" else _run)(command, environ)
        [made] = Path(folder).iterdir()
        into.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(made, into))


def _run(command: Sequence[str], environ: Mapping[str, str]) -> None:
    subprocess.run(command, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, check=True)


def _run_quietly(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Run a command and show its output only if it fails."""
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
    done.check_returncode()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="compile.wheels", description="Build the wheels and the sdist.")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="directory of the files (dist)")
    parser.add_argument("--no-compile", action="store_true", help="build only the pure wheel and the sdist")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Build everything and print the names of the files."""
    options = _parser().parse_args(arguments)
    with build_tools() as python:
        plans = [("sdist", "0"), ("wheel", "0")]
        if not options.no_compile:
            plans.append(("wheel", "auto"))
        made = {build(python, target, options.into, mode=mode) for target, mode in plans}
    for file in sorted(made):
        print(f"{file.stat().st_size / 1e6:6.1f} MB  {file.name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
