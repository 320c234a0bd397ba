"""Imports compiled modules of the hot path instead of their sources, if they were built from these.

A binary wheel carries them in a directory beside this file, with a manifest; `make compile` writes them there
in a tree. They call each other directly, so all of them are used or none: if one source has changed, if they
are for the binary interface of another Python, or with `ROUTECODEX_PURE=1`, the sources run. C files are
outside of the package; an installed package does not have them, so a missing one does not count as changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).parent
DIRECTORY = PACKAGE / "_compiled"
MANIFEST = DIRECTORY / "manifest.json"

BINARY_INTERFACE = f"{sys.implementation.cache_tag} {''.join(EXTENSION_SUFFIXES[:1])}"
"""Names the Python versions and platforms that can load one build: all patch releases of a minor version, as
the tags of a binary wheel promise (PEP 425)."""


def digest(modules: Iterable[str]) -> str:
    """Return the digest of a build: the binary interface and the sources of the modules."""
    hasher = hashlib.blake2b(BINARY_INTERFACE.encode(), digest_size=16)
    for module in modules:
        hasher.update(module.encode() + b"\0" + source(module).read_bytes() + b"\0")
    return hasher.hexdigest()


def file_digest(file: Path) -> str:
    """Return the digest of a file."""
    return hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()


def source(module: str) -> Path:
    """Return the source file of a module of this package."""
    return PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")


class Finder(MetaPathFinder):
    """Finds compiled modules only."""

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
    """Return a finder for the build of the manifest, or None if there is none for these sources."""
    try:
        build = json.loads(manifest.read_bytes())
        if build["digest"] == digest(build["modules"]) and not _changed(build["outside"]):
            return Finder(manifest.parent, build["files"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _changed(outside: Mapping[str, str]) -> bool:
    """Return whether a source outside of the package has changed; a missing one has not."""
    files = {PACKAGE / name: recorded for name, recorded in outside.items()}
    return any(file.exists() and file_digest(file) != recorded for file, recorded in files.items())


def install(environ: Mapping[str, str] = os.environ) -> bool:
    """Import compiled modules from now on; return False if there are none for these sources."""
    if environ.get("ROUTECODEX_PURE", "0") not in ("", "0"):
        return False
    finder = matching_build()
    if finder is not None:
        sys.meta_path.insert(0, finder)
    return finder is not None
