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
    return parser


def main() -> None:
    """Replace the last build, unless it is of these sources."""
    options = _parser().parse_args()
    manifest = compiled.MANIFEST
    if manifest.exists() and json.loads(manifest.read_bytes()).items() >= manifest_of_sources().items():
        print("the compiled modules are up to date")
        return
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "build"
        profiled = build(into, Path(folder) / "scratch", plainly=options.plainly)
        shutil.rmtree(compiled.DIRECTORY, ignore_errors=True)
        shutil.copytree(into, compiled.DIRECTORY)
    print(f"compiled {len(NAMES)} modules{', optimised by profile' if profiled else ''}")


if __name__ == "__main__":
    main()
