"""Fixtures for tests of commands: an empty user dir."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user dir, empty."""
    for name in ("ROUTECODEX_CONFIG_PATH", "ROUTECODEX_SESSION_DIR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "user"
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(path))
    return path
