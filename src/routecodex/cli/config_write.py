"""Writes what `routecodex init` has put together: key files first, then the configuration, in one step."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from routecodex.config.values import Secret


def require_writable(file: Path) -> None:
    """Raise OSError if the file could not be written, so that nobody answers questions in vain."""
    if file.is_dir():
        raise IsADirectoryError(21, "is a directory", str(file))
    existing = next(one for one in (file.parent, *file.parent.parents) if one.exists())
    if not existing.is_dir():
        raise NotADirectoryError(20, "is not a directory", str(existing))
    if not os.access(existing, os.W_OK | os.X_OK):
        raise PermissionError(13, "cannot be written by this user", str(existing))


def free_key_file(directory: Path, name: str) -> Path:
    """Return a path for a new key file; a file that is there may belong to another configuration."""
    paths = (directory / (name if number == 1 else f"{name}-{number}") for number in range(1, 1000))
    return next(path for path in paths if not path.exists())


def write_all(file: Path, text: str, *, keys: Mapping[Path, Secret], back_up_as: Path | None = None) -> None:
    """Write key files (0600) and the configuration; raise OSError with nothing new left behind."""
    with contextlib.ExitStack() as undo:
        for path, key in keys.items():
            undo.enter_context(_new_key_file(path, key))
        if back_up_as is not None:
            shutil.copy2(file, back_up_as)
        _replace(file, text)


@contextlib.contextmanager
def _new_key_file(path: Path, key: Secret) -> Iterator[None]:
    """Write a key into a new file; it is deleted if a later step fails."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as opened:
            opened.write(f"{key.reveal()}\n")
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _replace(file: Path, text: str) -> None:
    """Replace the file as a whole; one that is there keeps its mode, and a link stays a link."""
    real = file.resolve()
    mode = real.stat().st_mode & 0o777 if real.exists() else 0o600
    real.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{real.name}.", dir=real.parent)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="") as opened:
            opened.write(text)
        os.chmod(name, mode)
        os.replace(name, real)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
