"""The texts people keep in files for `stopMessage`: read below the user dir, and nowhere else."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath

MOST_BYTES = 64 * 1024

_HOME = "stopMessage"
_TEXTS = frozenset({".md", ".txt"})


class MessageFileError(Exception):
    """The file cannot be used; the message says why, on one line."""


def read_message(path: str, *, user_dir: Path) -> str:
    """The text of a file below the user dir, without white space at its end."""
    _check_name(path)
    content = _content(path, _inside(path, user_dir))
    if len(content) > MOST_BYTES:
        raise _refusal(path, f"is larger than {MOST_BYTES // 1024} KB")
    try:
        text = content.decode("utf-8-sig").rstrip()
    except UnicodeDecodeError:
        raise _refusal(path, "is not UTF-8 text") from None
    if not text:
        raise _refusal(path, "is empty")
    return text


def _refusal(path: str, why: str) -> MessageFileError:
    shown = path if len(path) <= 120 else f"{path[:120]}…"
    return MessageFileError(f"the message file {shown!r} {why}")


def _check_name(path: str) -> None:
    if not path.isprintable():
        raise _refusal(path, "has a name with control characters")
    parts = path.replace("\\", "/").split("/")
    if not path or parts[0] == "" or parts[0].endswith(":") or path.startswith("~"):
        raise _refusal(path, "must be named by a path below the user dir, not an absolute one")
    if ".." in parts:
        raise _refusal(path, "must lie below the user dir: '..' is not allowed")


def _inside(path: str, user_dir: Path) -> Path:
    """Where the file really is, once every symlink is followed."""
    try:
        root = user_dir.resolve(strict=True)
        found = (root / path).resolve(strict=True)
    except FileNotFoundError:
        raise _refusal(path, "does not exist below the user dir") from None
    except (OSError, RuntimeError) as exc:
        raise _refusal(path, f"cannot be read: {_reason(exc)}") from exc
    if not found.is_relative_to(root):
        raise _refusal(path, "leaves the user dir by a symlink")
    below = PurePosixPath(found.relative_to(root))
    # The user dir also holds the configuration with its keys, and what is said goes to a model.
    if below.parts[:1] != (_HOME,) and below.suffix.lower() not in _TEXTS:
        raise _refusal(path, f"must lie in {_HOME}/, or be a .md or .txt file")
    return found


def _content(path: str, found: Path) -> bytes:
    """At most one byte more than allowed; nothing that would wait for a writer is opened."""
    try:
        if not stat.S_ISREG(found.stat().st_mode):
            raise _refusal(path, "is not a regular file")
        descriptor = os.open(found, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _refusal(path, "is not a regular file")
            return file.read(MOST_BYTES + 1)
    except OSError as exc:
        raise _refusal(path, f"cannot be read: {_reason(exc)}") from exc


def _reason(exc: OSError | RuntimeError) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or "its symlinks go in a circle"
