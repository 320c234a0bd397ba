"""Runs tests on every Python of this machine: `python -m tests.pythons`, which is `make test-pythons`.

Interpreters are looked for on PATH, in pyenv and among those of uv; the newest release of each version from
3.11 on is taken. Each gets an environment below `.pythons/`. Only the standard library is needed to run this.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements/test.lock"
FOLDER = ROOT / ".pythons"
OLDEST = (3, 11)

PARTS = ("tests/wire", "tests/canon", "tests/protocols", "tests/providers", "tests/server", "tests/stores")
"""Codecs and sockets: what a version of Python may change."""
MORE = ("tests/gateway/test_matrix.py", "tests/gateway/test_both_ways.py", "tests/bench/test_guard.py")
WITHOUT = ("tests/protocols/test_linear_work.py", "tests/server/test_workers.py")
"""Tests that take long and do not depend on the version."""

_ASK = """
import json, platform, sys
locked = getattr(sys, "_is_gil_enabled", lambda: True)()
known = platform.python_implementation() == "CPython" and locked
print(json.dumps([list(sys.version_info[:3]), sys.executable if known else ""]))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python of this machine."""

    release: tuple[int, int, int]
    path: str

    @property
    def version(self) -> str:
        """The minor version, as in `3.12`."""
        return f"{self.release[0]}.{self.release[1]}"


def candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield programs that may be a Python 3: on PATH, of pyenv, of uv."""
    home = Path(environ.get("HOME", ""))
    folders = [Path(folder) for folder in environ.get("PATH", "").split(os.pathsep) if folder]
    versions = Path(environ.get("PYENV_ROOT") or home / ".pyenv") / "versions"
    managed = Path(environ.get("UV_PYTHON_INSTALL_DIR") or home / ".local/share/uv/python")
    for parent in (versions, managed):
        folders += sorted(parent.glob("*/bin"))
    for folder in folders:
        found = (
            file for file in sorted(folder.glob("python3*")) if re.fullmatch(r"python3(\.\d+)?", file.name)
        )
        yield from found


def ask(program: Path) -> Interpreter | None:
    """Return the interpreter that a program is; None if it does not run, such as a shim of pyenv."""
    try:
        done = subprocess.run([program, "-I", "-c", _ASK], capture_output=True, text=True, timeout=30)
        release, path = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return Interpreter(tuple(release), path) if path else None


def newest(found: Iterable[Interpreter]) -> list[Interpreter]:
    """Return the newest release of each version that is supported, oldest version first."""
    best: dict[tuple[int, int], Interpreter] = {}
    for each in found:
        version = each.release[:2]
        if version >= OLDEST and (version not in best or each.release > best[version].release):
            best[version] = each
    return [best[version] for version in sorted(best)]


def discover(environ: Mapping[str, str]) -> list[Interpreter]:
    """Return the interpreters of this machine."""
    programs = dict.fromkeys(candidates(environ))
    return newest(found for found in map(ask, programs) if found is not None)


def prepare(interpreter: Interpreter) -> Path:
    """Create the environment of an interpreter, unless it is up to date, and return its Python."""
    venv = FOLDER / interpreter.version
    mark = venv / ".prepared"
    wanted = hashlib.sha256(LOCK.read_bytes() + str(interpreter).encode()).hexdigest()
    if not mark.exists() or mark.read_text() != wanted:
        shutil.rmtree(venv, ignore_errors=True)
        subprocess.run([interpreter.path, "-m", "venv", venv], check=True)
        pip = (venv / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        subprocess.run([*pip, "--require-hashes", "-r", LOCK], check=True)
        # As if it were installed in place, without the tools for that.
        [packages] = (venv / "lib").glob("python*/site-packages")
        (packages / "routecodex.pth").write_text(f"{ROOT / 'src'}\n")
        mark.write_text(wanted)
    return venv / "bin/python"


def run(interpreter: Interpreter, arguments: Sequence[str]) -> int:
    """Run `python …` with the sources of this tree and return its exit code."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run([prepare(interpreter), *arguments], cwd=ROOT, env=environ).returncode


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests.pythons", description="Run tests on every Python found.")
    parser.add_argument("--only", action="append", metavar="VERSION", help="only this version, such as 3.12")
    parser.add_argument("--list", action="store_true", help="list the interpreters that are found")
    parser.add_argument(
        "arguments", nargs="*", help="arguments of Python, after `--`; by default pytest with the bounded set"
    )
    return parser


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run on each interpreter and print the results; return 1 if one fails, 2 if there is none."""
    options = _parser().parse_args(arguments)
    found = [each for each in discover(environ) if not options.only or each.version in options.only]
    if not found:
        print(f"no Python {' '.join(options.only or ['from 3.11 on'])} was found", file=sys.stderr)
        return 2
    if options.list:
        print(*(f"{each.version}  {each.path}" for each in found), sep="\n")
        return 0
    command = options.arguments or ["-m", "pytest", *PARTS, *MORE, *(f"--ignore={name}" for name in WITHOUT)]
    results = {}
    for each in found:
        print(f"== Python {'.'.join(map(str, each.release))}: {each.path}", flush=True)
        started = time.monotonic()
        code = run(each, command)
        results[each.version] = code
        print(f"== {each.version}: exit code {code} after {time.monotonic() - started:.0f} s", flush=True)
    print("; ".join(f"{version}: {'failed' if code else 'passed'}" for version, code in results.items()))
    return int(any(results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
