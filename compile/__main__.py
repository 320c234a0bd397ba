"""Compiles the modules of the hot path into the package, for the Python that runs this."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from compile.build import NAMES, build, made_of
from routecodex import compiled


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="compile", description="Make machine code of the hot path.")
    parser.add_argument(
        "--plainly",
        action="store_true",
        help="in half the time, and about a tenth slower: not laid out by counts",
    )
    return parser


def main() -> None:
    """Replaces what was compiled before, unless it is of these sources already."""
    options = _parser().parse_args()
    manifest = compiled.MANIFEST
    if manifest.exists() and json.loads(manifest.read_bytes()).items() >= made_of().items():
        print("the compiled modules are those of these sources")
        return
    with tempfile.TemporaryDirectory() as place:
        into = Path(place) / "made"
        by_counts = build(into, Path(place) / "scratch", plainly=options.plainly)
        shutil.rmtree(compiled.DIRECTORY, ignore_errors=True)
        shutil.copytree(into, compiled.DIRECTORY)
    print(f"compiled {len(NAMES)} modules{', laid out by counts' if by_counts else ''}")


if __name__ == "__main__":
    main()
