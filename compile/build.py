"""The work of the compilers: from the sources to libraries that Python loads.

Where it can be done, all is built twice. What is built first counts how often each way is taken, and is run
for some seconds; by these counts the second is laid out: what runs often lies together, and what hardly ever
runs is out of the way. It is the same code, and does the same.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Distribution, Extension  # type: ignore[import-untyped]  # it has no types
from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]  # it has no types

from compile.modules import IN_C, MODULES
from routecodex import compiled

HERE = Path(__file__).parent
TYPED = tuple(f"routecodex.{module}" for module in MODULES)
WRITTEN = {f"routecodex.{module}": HERE / name for module, name in IN_C.items()}

READ = tuple(sorted(HERE.glob("*.h")))
"""What is read into them."""
NAMES = (*TYPED, *WRITTEN)

_VECTORS = [] if os.name == "nt" else ["-O3"]
"""Makes vector instructions of loops over bytes, where the compiler does not do so anyway."""

_AS_ONE = ["-flto=auto", "-fno-semantic-interposition"] if sys.platform == "linux" else []
"""Lets modules call each other without detours: they are one library, and nobody else calls into it."""
_COUNTING = ["-fprofile-generate", "-fprofile-update=single"]

_BY_COUNTS = ["-fprofile-use", "-fprofile-correction", "-fprofile-partial-training", "-Wno-missing-profile"]
"""Other ways than those that were counted stay as fast as they were."""
_TRAINING_SECONDS = 300


def made_of() -> dict[str, object]:
    """What a build of the sources that are there is known by, as its manifest tells it."""
    files = (*WRITTEN.values(), *READ)
    outside = {os.path.relpath(file, compiled.PACKAGE): compiled.file_digest(file) for file in files}
    return {"digest": compiled.digest(NAMES), "modules": list(NAMES), "outside": outside}


def build(into: Path, scratch: Path, *, plainly: bool = False) -> bool:
    """Compiles all modules into a directory, with their manifest; whether they are laid out by counts."""
    extensions = _extensions(scratch)
    if plainly or not _can_count():
        _compile(extensions, into, scratch)
        return False
    trial = scratch / "trial"
    _compile(extensions, trial, scratch, _COUNTING)
    counted = _train(trial / compiled.MANIFEST.name)
    if not counted:
        print("the training failed: compiled without its counts", file=sys.stderr)
    _compile(extensions, into, scratch, _BY_COUNTS if counted else ())
    return counted


def _extensions(scratch: Path) -> list[Extension]:
    with _only_news():
        made: list[Extension] = mypycify(
            ["--strict", "--warn-unreachable", *(str(compiled.source(name)) for name in TYPED)],
            opt_level="3",
            debug_level="0",
            multi_file=True,
            target_dir=str(scratch),
        )
    for extension in made:
        extension.extra_compile_args += _AS_ONE
        extension.extra_link_args += _AS_ONE
    return made + [
        Extension(name, [str(file)], extra_compile_args=_VECTORS) for name, file in WRITTEN.items()
    ]


@contextlib.contextmanager
def _only_news() -> Iterator[None]:
    """Leaves out of what mypyc says what nobody can do anything about, and is meant."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            yield
    finally:
        for line in said.getvalue().splitlines():
            if "Treating generator comprehension as list" not in line:
                print(line)


def _compile(extensions: list[Extension], into: Path, scratch: Path, flags: Sequence[str] = ()) -> None:
    """Compiles with these flags more; the counts of what is built there are found by where it was built."""
    before = [(list(each.extra_compile_args), list(each.extra_link_args)) for each in extensions]
    for each in extensions:
        each.extra_compile_args += flags
        each.extra_link_args += flags
    command = build_ext(Distribution({"name": "routecodex", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(into), str(scratch)
    command.parallel = os.cpu_count()
    command.force = True
    command.ensure_finalized()
    command.run()
    for each, (compiling, linking) in zip(extensions, before, strict=True):
        each.extra_compile_args, each.extra_link_args = compiling, linking
    files = {each.name: command.get_ext_filename(each.name) for each in extensions}
    manifest = {**made_of(), "files": files}
    (into / compiled.MANIFEST.name).write_text(json.dumps(manifest, indent=1))


def _can_count() -> bool:
    """Whether the compiler is one that counts in this way: GCC is, and others have other ways."""
    command = (sysconfig.get_config_var("CC") or "cc").split()
    try:
        said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return False
    return sys.platform == "linux" and "Free Software Foundation" in said


def _train(manifest: Path) -> bool:
    """Runs what counts; whether it did so to the end."""
    environ = {**os.environ, "ROUTECODEX_PURE": "1"}
    command = [sys.executable, "-m", "compile.training", str(manifest)]
    try:
        done = subprocess.run(command, env=environ, cwd=HERE.parent, timeout=_TRAINING_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
