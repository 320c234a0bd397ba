"""Reads texts for `stopMessage` from files below the user directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath

MOST_BYTES = 64 * 1024

_MESSAGE_DIR = "stopMessage"
_TEXT_SUFFIXES = frozenset({".md", ".txt"})


class MessageFileError(Exception):
    """The file cannot be used; the message states the reason on one line."""


def read_message(path: str, *, user_dir: Path) -> str:
    """Return the text of a file below the user directory, without trailing white space."""
    _check_name(path)
    content = _read_bytes(path, _resolve(path, user_dir))
    if len(content) > MOST_BYTES:
        raise _file_error(path, f"is larger than {MOST_BYTES // 1024} KB")
    try:
        text = content.decode("utf-8-sig").rstrip()
    except UnicodeDecodeError:
        raise _file_error(path, "is not UTF-8 text") from None
    if not text:
        raise _file_error(path, "is empty")
    return text


def _file_error(path: str, why: str) -> MessageFileError:
    shown = path if len(path) <= 120 else f"{path[:120]}…"
    return MessageFileError(f"the message file {shown!r} {why}")


def _check_name(path: str) -> None:
    if not path.isprintable():
        raise _file_error(path, "has a name with control characters")
    parts = path.replace("\\", "/").split("/")
    if not path or parts[0] == "" or parts[0].endswith(":") or path.startswith("~"):
        raise _file_error(path, "must be named by a path below the user dir, not an absolute one")
    if ".." in parts:
        raise _file_error(path, "must lie below the user dir: '..' is not allowed")


def _resolve(path: str, user_dir: Path) -> Path:
    """Return the file with every symlink followed."""
    try:
        root = user_dir.resolve(strict=True)
        file_path = (root / path).resolve(strict=True)
    except FileNotFoundError:
        raise _file_error(path, "does not exist below the user dir") from None
    except (OSError, RuntimeError) as exc:
        raise _file_error(path, f"cannot be read: {_reason(exc)}") from exc
    if not file_path.is_relative_to(root):
        raise _file_error(path, "leaves the user dir by a symlink")
    below = PurePosixPath(file_path.relative_to(root))
    # The user directory also holds the configuration with its keys, and the text is sent to a model.
    if below.parts[:1] != (_MESSAGE_DIR,) and below.suffix.lower() not in _TEXT_SUFFIXES:
        raise _file_error(path, f"must lie in {_MESSAGE_DIR}/, or be a .md or .txt file")
    return file_path


def _read_bytes(path: str, file_path: Path) -> bytes:
    """Read at most one byte more than allowed; a pipe, which would wait for its writer, is not opened."""
    try:
        if not stat.S_ISREG(file_path.stat().st_mode):
            raise _file_error(path, "is not a regular file")
        descriptor = os.open(file_path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _file_error(path, "is not a regular file")
            return file.read(MOST_BYTES + 1)
    except OSError as exc:
        raise _file_error(path, f"cannot be read: {_reason(exc)}") from exc


def _reason(exc: OSError | RuntimeError) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or "its symlinks form a loop"
