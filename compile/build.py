"""Runs the compilers: from the sources to extension modules.

With GCC everything is built twice. The first build counts branches while it runs the training for some
seconds; the second one is optimised by this profile (GCC manual, -fprofile-use). Both behave the same.
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
from compile.progress import Progress
from routecodex import compiled

HERE = Path(__file__).parent
COMPILED = tuple(f"routecodex.{module}" for module in MODULES)
REPLACED = {f"routecodex.{module}": HERE / name for module, name in IN_C.items()}

HEADERS = tuple(sorted(HERE.glob("*.h")))
"""Headers that the C files include."""
NAMES = (*COMPILED, *REPLACED)

_VECTORISE = [] if os.name == "nt" else ["-O3"]
"""Vectorises loops over bytes; older GCC versions do so from -O3 on only."""

_LINK_TIME = ["-flto=auto", "-fno-semantic-interposition"] if sys.platform == "linux" else []
"""Lets modules call each other directly: they form one library, and no other code calls into it."""
_INSTRUMENTED = ["-fprofile-generate", "-fprofile-update=single"]

_BY_PROFILE = ["-fprofile-use", "-fprofile-correction", "-fprofile-partial-training", "-Wno-missing-profile"]
"""`partial-training`: code that the training did not reach is still optimised for speed."""
_TRAINING_SECONDS = 300


def manifest_of_sources() -> dict[str, object]:
    """Return the manifest of a build of these sources, without its files."""
    files = (*REPLACED.values(), *HEADERS)
    outside = {os.path.relpath(file, compiled.PACKAGE): compiled.file_digest(file) for file in files}
    return {"digest": compiled.digest(NAMES), "modules": list(NAMES), "outside": outside}


def build(into: Path, scratch: Path, *, plainly: bool = False) -> bool:
    """Compile all modules into a directory, with their manifest; return whether a profile was used."""
    # Taken first: a source that changes meanwhile must not pass for the one that was compiled.
    sources = manifest_of_sources()
    by_profile = not plainly and _is_gcc()
    progress = Progress(4 if by_profile else 2)
    with progress.step(f"translating {len(COMPILED)} modules to C"):
        extensions = _extensions(scratch)
    if not by_profile:
        with progress.step("compiling the C code"):
            _compile(extensions, into, scratch, sources)
        return False
    instrumented = scratch / "instrumented"
    with progress.step("compiling the C code with counters"):
        _compile(extensions, instrumented, scratch, sources, _INSTRUMENTED)
    with progress.step("running it to learn the profile"):
        trained = _train(instrumented / compiled.MANIFEST.name)
    if not trained:
        print("the training failed: compiled without a profile", file=sys.stderr)
    with progress.step("compiling the C code by the profile"):
        _compile(extensions, into, scratch, sources, _BY_PROFILE if trained else ())
    return trained


def _extensions(scratch: Path) -> list[Extension]:
    with _filtered_output():
        extensions: list[Extension] = mypycify(
            ["--strict", "--warn-unreachable", *(str(compiled.source(name)) for name in COMPILED)],
            opt_level="3",
            debug_level="0",
            multi_file=True,
            target_dir=str(scratch),
        )
    for extension in extensions:
        extension.extra_compile_args += _LINK_TIME
        extension.extra_link_args += _LINK_TIME
    return extensions + [
        Extension(name, [str(file)], extra_compile_args=_VECTORISE) for name, file in REPLACED.items()
    ]


@contextlib.contextmanager
def _filtered_output() -> Iterator[None]:
    """Drop a message of mypyc about generator comprehensions, which are intended."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            yield
    finally:
        for line in output.getvalue().splitlines():
            if "Treating generator comprehension as list" not in line:
                print(line)


def _compile(
    extensions: list[Extension],
    into: Path,
    scratch: Path,
    sources: dict[str, object],
    flags: Sequence[str] = (),
) -> None:
    """Compile with further flags; GCC finds a profile by the build path, so `scratch` stays the same."""
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
    manifest = {**sources, "files": files}
    (into / compiled.MANIFEST.name).write_text(json.dumps(manifest, indent=1))


def _is_gcc() -> bool:
    """Return whether the compiler is GCC: others have other profile options."""
    command = (sysconfig.get_config_var("CC") or "cc").split()
    try:
        version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return False
    return sys.platform == "linux" and "Free Software Foundation" in version


def _train(manifest: Path) -> bool:
    """Run the training with the instrumented build; return whether it succeeded."""
    environ = {**os.environ, "ROUTECODEX_PURE": "1"}
    command = [sys.executable, "-m", "compile.training", str(manifest)]
    try:
        done = subprocess.run(command, env=environ, cwd=HERE.parent, timeout=_TRAINING_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
