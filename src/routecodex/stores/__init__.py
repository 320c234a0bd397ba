"""State that outlives a request: one interface, several implementations.

store        Store, Stored, StoreError, Conflict: the interface
cell         Cell: cached, stamped access to one kind of stored value
background_trim  BackgroundTrim: deletes old values beside the requests that write
monitored    MonitoredStore: a store that times its calls and knows whether it can be used
memory       MemoryStore: values that end with the process
file         FileStore: readable JSON files, safe with several processes
folder       Folder: one space of a FileStore on disk, its lock and its damaged files
file_format  file names for arbitrary keys, time stamps, and the contents of a file

`open_store` opens the store of a configuration: `file:` (the session directory), `file:/path` or `memory:`.
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
    """Open the store at a URL without touching the disk; in `bare` spaces a file is the value alone."""
    scheme, colon, rest = url.partition(":")
    opener = _OPENERS.get(scheme.lower()) if colon else None
    if opener is None:
        # The message quotes only the scheme: the rest of a URL may contain a password.
        unknown = f"scheme {scheme!r}" if colon else "URL without a scheme"
        raise ConfigError(f"store.url: unknown {unknown}; use file:, file:/path or memory:")
    return opener(rest, session_dir, bare or {})


def _open_file(rest: str, session_dir: Path, bare: Bare) -> Store:
    path = rest.removeprefix("//") if rest.startswith("///") else rest
    if not path:
        return FileStore(session_dir, bare=bare)
    if not path.startswith(("/", "~/")) or path.startswith("//"):
        raise ConfigError(
            f"store.url: {rest!r} is not an absolute path; use file:/path, or file: for the session dir"
        )
    return FileStore(Path(path).expanduser(), bare=bare)


def _open_memory(rest: str, session_dir: Path, bare: Bare) -> Store:
    if rest:
        raise ConfigError(f"store.url: memory: does not take a path, but has {rest!r}")
    return MemoryStore()


_OPENERS: dict[str, Callable[[str, Path, Bare], Store]] = {"file": _open_file, "memory": _open_memory}
