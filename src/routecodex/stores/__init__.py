"""State that outlives a request: one small interface, several homes.

store     Store, Stored, StoreError, Conflict: the interface and what its calls mean
memory    MemoryStore: gone when the process ends
file      FileStore: readable JSON files, safe with several processes
folder    Folder: one space of a FileStore on disk, its lock and its damaged files
disk      what the operating system does for it, and its errors with the way out
envelope  what a file holds: the value with its version, expiry and key
names     file names for hostile keys, and the time stamps that order and expire the files
open      `open_store(url, …)`: the store a configuration names

The store a configuration names: `file:` (the session directory), `file:/path`, `memory:`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from routecodex.canon.errors import ConfigError
from routecodex.stores.file import FileStore
from routecodex.stores.file_format import KeyOf
from routecodex.stores.memory import MemoryStore
from routecodex.stores.store import Store

Bare = Mapping[str, KeyOf]


def open_store(url: str, *, session_dir: Path, bare: Bare | None = None) -> Store:
    """The store at a URL; touches no disk yet. `bare` are the spaces whose files are the values alone."""
    scheme, colon, rest = url.partition(":")
    opener = _OPENERS.get(scheme.lower()) if colon else None
    if opener is None:
        # Only the scheme is repeated: the rest of a URL may hold a password.
        said = f"scheme {scheme!r}" if colon else "URL without a scheme"
        raise ConfigError(f"store.url: unknown {said}; use file:, file:/path or memory:")
    return opener(rest, session_dir, bare or {})


def _open_file(rest: str, session_dir: Path, bare: Bare) -> Store:
    path = rest.removeprefix("//") if rest.startswith("///") else rest
    if not path:
        return FileStore(session_dir, bare=bare)
    if not path.startswith(("/", "~/")) or path.startswith("//"):
        raise ConfigError(
            f"store.url: {rest!r} is no absolute path; use file:/path, or file: for the session dir"
        )
    return FileStore(Path(path).expanduser(), bare=bare)


def _open_memory(rest: str, session_dir: Path, bare: Bare) -> Store:
    if rest:
        raise ConfigError(f"store.url: memory: takes nothing after the colon, not {rest!r}")
    return MemoryStore()


_OPENERS: dict[str, Callable[[str, Path, Bare], Store]] = {"file": _open_file, "memory": _open_memory}
