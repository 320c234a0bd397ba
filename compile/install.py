"""Installs RouteCodex for its user: `python -m compile.install`, which is `make install`.

The environment gets the locked runtime and the package, without tools. The command can be used after some
seconds, and runs from its sources; then the hot path is compiled where that is possible. Only the standard
library is needed to run this.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from compile.wheels import build, build_tools, create, install_locks, pip

OLDEST = (3, 11)
DEV_MARK = ".dev"
"""File in an environment that `make dev` has made."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="compile.install", description="Install the command `routecodex`.")
    parser.add_argument(
        "--venv", type=Path, default=Path(".venv"), help="environment to install into (.venv)"
    )
    parser.add_argument(
        "--no-compile", action="store_true", help="run from the sources: installed in seconds"
    )
    parser.add_argument(
        "--plainly",
        action="store_true",
        help="compile without profile: takes half the time, the code is about a tenth slower",
    )
    return parser


def prepare(venv: Path) -> Path:
    """Create the environment with the locked runtime and return its interpreter."""
    python = create(venv)
    install_locks(python, "runtime.lock")
    # `venv` adds setuptools up to Python 3.11; nothing needs it at run time, and it takes 9 MB.
    pip(python, "uninstall", "--yes", "setuptools")
    return python


def _put(python: Path, wheel: Path) -> None:
    pip(python, "install", "--no-deps", "--no-index", "--force-reinstall", str(wheel))


def _drop_caches_of_pip(venv: Path) -> None:
    """Delete the bytecode of pip, 6 MB that only another installation would use."""
    for folder in venv.glob("lib/python*/site-packages/pip/**/__pycache__"):
        shutil.rmtree(folder, ignore_errors=True)


def _is_compiled(python: Path) -> bool:
    script = "import routecodex; raise SystemExit(not routecodex.IS_COMPILED)"
    return subprocess.run([str(python), "-I", "-c", script]).returncode == 0


def _compile(tools: Path, python: Path, into: Path, mode: str) -> None:
    """Replace the installed package by a compiled one, if possible; it stays usable in any case."""
    print("compiling the hot path; Ctrl-C stops this, and the gateway runs from its sources", flush=True)
    try:
        _put(python, build(tools, "wheel", into, mode=mode))
    except KeyboardInterrupt:
        print("\nstopped", flush=True)
    except subprocess.CalledProcessError:
        print("the compilation failed; its output is above", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Install, and print how the gateway will run."""
    options = _parser().parse_args(arguments)
    if sys.version_info < OLDEST:
        print(f"error: this is Python {sys.version.split()[0]}; use 3.11 or newer: `make install PYTHON=…`")
        return 2
    if (options.venv / DEV_MARK).exists():
        print(
            f"{options.venv} was made by `make dev` and has the command already; to compile: `make compile`"
        )
        return 0
    print(f"installing the runtime into {options.venv}", flush=True)
    python = prepare(options.venv)
    with build_tools() as tools, tempfile.TemporaryDirectory() as folder:
        _put(python, build(tools, "wheel", Path(folder), mode="0"))
        print(f"installed {python.parent / 'routecodex'}", flush=True)
        if not options.no_compile:
            _compile(tools, python, Path(folder), "plainly" if options.plainly else "auto")
    _drop_caches_of_pip(options.venv)
    print("runs compiled" if _is_compiled(python) else "runs from its sources")
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except subprocess.CalledProcessError as exc:
        print(f"error: {' '.join(map(str, exc.cmd))} failed; its output is above", file=sys.stderr)
        raise SystemExit(1) from None
