"""Writes the files of a launch plan, and shows a plan without keys."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from routecodex.cli.agents.agent import PlannedFile

HIDDEN = "***"
_SECRET = re.compile(
    r"api.?key|(^|[_-])key$|token|secret|passw|authorization|credential|cookie", re.IGNORECASE
)
_KEPT_SECONDS = 30 * 86_400
"""Files of earlier runs are kept this long: an agent that still runs may read its file again."""


def write_files(folder: Path, files: Iterable[PlannedFile]) -> None:
    """Write the files below our folder, readable by the owner alone; raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    planned = list(files)
    for file in planned:
        file.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if file.link is not None:
            _link(file.path, file.link)
        else:
            _replace(file.path, file.content.encode())
    _remove_stale(folder, {file.path for file in planned})


def _replace(path: Path, content: bytes) -> None:
    with contextlib.suppress(OSError):
        if not path.is_symlink() and path.read_bytes() == content:
            # Kept as young as the run, see _remove_stale.
            os.utime(path)
            return
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.replace(temporary, path)


def _link(path: Path, target: Path) -> None:
    """Link to a person's file, unless the agent has written a newer one in its place."""
    with contextlib.suppress(OSError):
        if os.readlink(path) == str(target):
            return
    with contextlib.suppress(FileNotFoundError):
        if not path.is_symlink() and (path.is_dir() or path.stat().st_mtime >= target.stat().st_mtime):
            return
    path.unlink(missing_ok=True)
    with contextlib.suppress(FileExistsError):
        # Another run may have made the same link since.
        path.symlink_to(target)


def _remove_stale(folder: Path, planned: set[Path]) -> None:
    """Remove links whose target is gone, and our own files that no run has used for long."""
    for parent in {path.parent for path in planned} | {folder}:
        for path in parent.iterdir():
            dangling = path.is_symlink() and not path.exists()
            if path not in planned and (dangling or _is_old_catalogue(path)):
                path.unlink(missing_ok=True)


def _is_old_catalogue(path: Path) -> bool:
    try:
        age = time.time() - path.lstat().st_mtime
    except OSError:
        return False
    return path.match("models-*.json") and age > _KEPT_SECONDS


def shown_content(file: PlannedFile) -> str:
    """Return what a plan shows of a file."""
    return f"link to {file.link}" if file.link is not None else without_secrets(file.content)


def without_secrets(text: str) -> str:
    """Return a JSON object with its secrets hidden, known by their names; other texts as they are."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    hidden = msgspec.json.encode(_hide(value))
    return (msgspec.json.format(hidden, indent=2) + b"\n" if "\n" in text else hidden).decode()


def _hide(value: Any) -> Any:
    if isinstance(value, list):
        return [_hide(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {name: _hidden_value(name, inner) for name, inner in value.items()}


def _hidden_value(name: str, value: Any) -> Any:
    return HIDDEN if isinstance(value, str) and value and _SECRET.search(name) else _hide(value)
