"""Modules of the hot path as machine code, taken instead of their sources where they were made from these.

`make compile` writes them into a directory beside this file, with a manifest. They call each other directly,
so it is all of them or none: one source that has changed since, another Python, or `ROUTECODEX_PURE=1`, and
the sources run. What is written in C besides has that source outside of the package, and counts as long as it
is there.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).parent
DIRECTORY = PACKAGE / "_compiled"
MANIFEST = DIRECTORY / "manifest.json"


def digest(modules: Iterable[str]) -> str:
    """What a build of these modules is known by: this Python and every byte of their sources."""
    made_of = hashlib.blake2b(sys.version.encode(), digest_size=16)
    for module in modules:
        made_of.update(module.encode() + b"\0" + source(module).read_bytes() + b"\0")
    return made_of.hexdigest()


def file_digest(file: Path) -> str:
    """What the bytes of a file are known by."""
    return hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()


def source(module: str) -> Path:
    """The file of a module of this package."""
    return PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")


class Finder(MetaPathFinder):
    """Finds the modules that were compiled, and no others."""

    def __init__(self, directory: Path, files: Mapping[str, str]) -> None:
        self._directory = directory
        self._files = files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name = self._files.get(fullname)
        if name is None:
            return None
        file = str(self._directory / name)
        return spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, file))


def matching_build(manifest: Path = MANIFEST) -> Finder | None:
    """What finds the modules that were compiled, None when there are none or they are of other sources."""
    try:
        made = json.loads(manifest.read_bytes())
        if made["digest"] == digest(made["modules"]) and not _changed(made["outside"]):
            return Finder(manifest.parent, made["files"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _changed(outside: Mapping[str, str]) -> bool:
    """Whether a source that lies outside of the package is another one now; one that is gone is not."""
    files = {PACKAGE / name: known for name, known in outside.items()}
    return any(file.exists() and file_digest(file) != known for file, known in files.items())


def install(environ: Mapping[str, str] = os.environ) -> bool:
    """Lets the compiled modules be imported from now on; False when there are none for these sources."""
    if environ.get("ROUTECODEX_PURE", "0") not in ("", "0"):
        return False
    finder = matching_build()
    if finder is not None:
        sys.meta_path.insert(0, finder)
    return finder is not None
