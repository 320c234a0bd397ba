"""Directories in which a server keeps its state."""

from __future__ import annotations

import os
from pathlib import Path

from routecodex.config import Config


def user_dir() -> Path:
    """Return the user dir."""
    return Path(os.environ.get("ROUTECODEX_USER_DIR") or "~/.routecodex").expanduser()


def session_dir(config: Config, home: Path | None = None) -> Path:
    """Return the directory of the server's state; `home` replaces the user dir."""
    path = os.environ.get("ROUTECODEX_SESSION_DIR")
    return Path(path).expanduser() if path else (home or user_dir()) / "sessions" / config.identity
