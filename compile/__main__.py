"""Compiles the modules of the hot path into the package, for the Python that runs this."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from compile.build import NAMES, build, manifest_of_sources
from routecodex import compiled


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="compile", description="Compile the hot path to machine code.")
    parser.add_argument(
        "--plainly",
        action="store_true",
        help="build without profile: takes half the time, the code is about a tenth slower",
    )
    parser.add_argument(
        "--into", type=Path, default=compiled.DIRECTORY, help="another directory than that of the package"
    )
    return parser


def _is_current(manifest: Path) -> bool:
    """Return whether there is a build of these sources, for this Python."""
    if not manifest.exists():
        return False
    build = json.loads(manifest.read_bytes())
    return bool(build.items() >= manifest_of_sources().items())


def _replace(directory: Path, by: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(by, directory)


def main() -> None:
    """Replace the last build, unless it is of these sources; a build in the package is used elsewhere too."""
    options = _parser().parse_args()
    if _is_current(compiled.MANIFEST):
        if options.into != compiled.DIRECTORY:
            _replace(options.into, compiled.DIRECTORY)
        print("the compiled modules are up to date")
        return
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "build"
        profiled = build(into, Path(folder) / "scratch", plainly=options.plainly)
        _replace(options.into, into)
    print(f"compiled {len(NAMES)} modules{', optimised by profile' if profiled else ''}")


if __name__ == "__main__":
    main()
