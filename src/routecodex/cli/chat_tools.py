"""Tools of `routecodex chat --tools`: list files, read files, run commands.

Files below the working directory may be listed and read. Hidden files and every command need a confirmation
at the terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

_MAX_FILES = 300
_MAX_BYTES = 100_000
_MAX_CHARACTERS = 20_000
_TIMEOUT_SECONDS = 120.0


class OutsideWorkspace(ValueError):
    """A path that leads out of the working directory."""


class Workspace:
    """The tools, bound to one directory."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    @property
    def tools(self) -> list[Callable[..., Any]]:
        return [self.list_files, self.read_file, self.run_command]

    def is_harmless(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Whether a call needs no confirmation."""
        if name not in ("list_files", "read_file"):
            return False
        try:
            return not _is_hidden(self._inside(str(arguments.get("path", "."))).relative_to(self._root))
        except OutsideWorkspace:
            # The tool itself rejects it.
            return True

    def list_files(self, path: str = ".") -> str:
        """List the files below a directory of the working directory, hidden ones left out."""
        top = self._inside(path)
        if not top.is_dir():
            return f"{path} is not a directory"
        shown = _is_hidden(top.relative_to(self._root))
        found = list(islice(_files(top, hidden=shown), _MAX_FILES + 1))
        names = [str(file.relative_to(self._root)) for file in found[:_MAX_FILES]]
        if len(found) > _MAX_FILES:
            names.append(f"(only the first {_MAX_FILES}; list a directory below)")
        return "\n".join(names) or "(no files)"

    def read_file(self, path: str, first_line: int = 1, lines: int = 500) -> str:
        """Read lines of a text file below the working directory."""
        file = self._inside(path)
        if not file.is_file():
            return f"{path} is not a file"
        with file.open("rb") as opened:
            data = opened.read(_MAX_BYTES + 1)
        if b"\0" in data:
            return f"{path} is not a text file"
        start = max(first_line, 1) - 1
        selected = data[:_MAX_BYTES].decode("utf-8", "replace").splitlines()[start : start + max(lines, 1)]
        if len(data) > _MAX_BYTES:
            selected.append(f"(cut off after {_MAX_BYTES} bytes)")
        return "\n".join(selected)

    async def run_command(self, command: str) -> str:
        """Run a shell command in the working directory, after the user confirms it; returns its output."""
        process = await asyncio.create_subprocess_shell(
            command,
            cwd=self._root,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                output, _ = await process.communicate()
        except TimeoutError:
            return f"(killed after {_TIMEOUT_SECONDS:g} s)"
        finally:
            # Background processes of the command are killed too.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        text = output.decode("utf-8", "replace")
        if len(text) > _MAX_CHARACTERS:
            text = f"{text[:_MAX_CHARACTERS]}\n(cut off; {len(text)} characters in all)"
        return f"exit code {process.returncode}\n{text}".rstrip()

    def _inside(self, path: str) -> Path:
        """Resolve a path below the working directory, links included."""
        found = (self._root / path).resolve()
        if not found.is_relative_to(self._root):
            raise OutsideWorkspace(f"{path} is outside the working directory")
        return found


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _files(top: Path, *, hidden: bool) -> Iterator[Path]:
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if hidden or not name.startswith("."))
        for name in sorted(names):
            if hidden or not name.startswith("."):
                yield Path(folder, name)
