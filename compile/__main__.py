"""Compiles the modules of the hot path into the package, for the Python that runs this."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Distribution  # type: ignore[import-untyped]
from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

from compile.modules import MODULES
from routecodex import compiled

NAMES = tuple(f"routecodex.{module}" for module in MODULES)


def build(into: Path, scratch: Path) -> dict[str, str]:
    """Compiles all modules into a directory; the files of each and of what they share, by full name."""
    sources = [str(compiled.source(name)) for name in NAMES]
    made = mypycify(
        ["--strict", "--warn-unreachable", *sources],
        opt_level="2",
        debug_level="0",
        multi_file=True,
        target_dir=str(scratch),
    )
    command = build_ext(Distribution({"name": "routecodex", "ext_modules": made}))
    command.build_lib, command.build_temp = str(into), str(scratch)
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    command.run()
    return {extension.name: command.get_ext_filename(extension.name) for extension in made}


def main() -> None:
    """Replaces what was compiled before, unless it is of these sources already."""
    digest = compiled.digest(NAMES)
    if compiled.MANIFEST.exists() and json.loads(compiled.MANIFEST.read_bytes())["digest"] == digest:
        print("the compiled modules are those of these sources")
        return
    with tempfile.TemporaryDirectory() as place:
        into = Path(place) / "made"
        files = build(into, Path(place) / "scratch")
        manifest = {"digest": digest, "modules": NAMES, "files": files}
        (into / compiled.MANIFEST.name).write_text(json.dumps(manifest, indent=1))
        shutil.rmtree(compiled.DIRECTORY, ignore_errors=True)
        shutil.copytree(into, compiled.DIRECTORY)
    print(f"compiled {len(NAMES)} modules")


if __name__ == "__main__":
    main()
