"""Compiles the modules of the hot path into the package, for the Python that runs this."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Distribution, Extension  # type: ignore[import-untyped]
from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

from compile.modules import IN_C, MODULES
from routecodex import compiled

HERE = Path(__file__).parent
TYPED = tuple(f"routecodex.{module}" for module in MODULES)
WRITTEN = {f"routecodex.{module}": HERE / name for module, name in IN_C.items()}
READ = tuple(sorted(HERE.glob("*.h")))
"""What is read into them."""
NAMES = (*TYPED, *WRITTEN)
VECTORS = [] if os.name == "nt" else ["-O3"]
"""Makes vector instructions of loops over bytes, where the compiler does not do so anyway."""
AS_ONE = ["-flto=auto", "-fno-semantic-interposition"] if sys.platform == "linux" else []
"""Lets modules call each other without detours: they are one library, and nobody else calls into it."""


def build(into: Path, scratch: Path) -> dict[str, str]:
    """Compiles all modules into a directory; the files of each and of what they share, by full name."""
    made = mypycify(
        ["--strict", "--warn-unreachable", *(str(compiled.source(name)) for name in TYPED)],
        opt_level="3",
        debug_level="0",
        multi_file=True,
        target_dir=str(scratch),
    )
    for extension in made:
        extension.extra_compile_args += AS_ONE
        extension.extra_link_args += AS_ONE
    made += [Extension(name, [str(file)], extra_compile_args=VECTORS) for name, file in WRITTEN.items()]
    command = build_ext(Distribution({"name": "routecodex", "ext_modules": made}))
    command.build_lib, command.build_temp = str(into), str(scratch)
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    command.run()
    return {extension.name: command.get_ext_filename(extension.name) for extension in made}


def made_of() -> dict[str, object]:
    """What a build of the sources that are there is known by, as its manifest tells it."""
    files = (*WRITTEN.values(), *READ)
    outside = {os.path.relpath(file, compiled.PACKAGE): compiled.seal(file) for file in files}
    return {"digest": compiled.digest(NAMES), "modules": list(NAMES), "outside": outside}


def main() -> None:
    """Replaces what was compiled before, unless it is of these sources already."""
    known = made_of()
    if compiled.MANIFEST.exists() and json.loads(compiled.MANIFEST.read_bytes()).items() >= known.items():
        print("the compiled modules are those of these sources")
        return
    with tempfile.TemporaryDirectory() as place:
        into = Path(place) / "made"
        manifest = {**known, "files": build(into, Path(place) / "scratch")}
        (into / compiled.MANIFEST.name).write_text(json.dumps(manifest, indent=1))
        shutil.rmtree(compiled.DIRECTORY, ignore_errors=True)
        shutil.copytree(into, compiled.DIRECTORY)
    print(f"compiled {len(NAMES)} modules")


if __name__ == "__main__":
    main()
