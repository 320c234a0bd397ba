from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from routecodex.canon.errors import ConfigError
from routecodex.stores import open_store
from routecodex.stores.file import FileStore
from routecodex.stores.memory import MemoryStore

SESSIONS = Path("/sessions/here")


@pytest.mark.parametrize(
    ("url", "directory"),
    [
        ("file:", SESSIONS),
        ("FILE:", SESSIONS),
        ("file:/var/lib/x y", Path("/var/lib/x y")),
        ("file:///var/lib/x", Path("/var/lib/x")),
        ("file:~/x", Path.home() / "x"),
    ],
)
async def test_a_file_url_names_a_directory(url: str, directory: Path) -> None:
    store = open_store(url, session_dir=SESSIONS)
    assert isinstance(store, FileStore)
    assert store.directory == directory
    await store.close()


async def test_memory_is_kept_in_the_process() -> None:
    assert isinstance(open_store("memory:", session_dir=SESSIONS), MemoryStore)


@pytest.mark.parametrize("url", ["", "file", "sqlite:x", "rediska://user:secret@host/0", "/var/lib/x", "://"])
async def test_another_scheme_is_refused_with_the_ones_there_are(url: str) -> None:
    with pytest.raises(ConfigError, match=r"file:, file:/path, memory: or redis://host") as caught:
        open_store(url, session_dir=SESSIONS)
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("url", ["file:here", "file:./here", "file://host/path", "file://", "memory:x"])
async def test_a_path_that_is_not_absolute_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"store\.url"):
        open_store(url, session_dir=SESSIONS)


async def test_a_redis_url_opens_a_redis_store_without_connecting() -> None:
    store = open_store("redis://127.0.0.1:1", session_dir=SESSIONS)
    assert store.kind == "redis"
    await store.close()


async def test_a_wrong_redis_url_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigError, match=r"store\.url: names no master") as caught:
        open_store("redis+sentinel://user:secret@host", session_dir=SESSIONS)
    assert "secret" not in caught.value.message


def test_redis_py_is_imported_only_for_a_redis_url() -> None:
    code = """
import sys
import subprocess
import sys
from pathlib import Path
from routecodex.stores import open_store
open_store("memory:", session_dir=Path("x"))
assert "redis" not in sys.modules, "for memory:"
open_store("redis://127.0.0.1:1", session_dir=Path("x"))
assert "redis" in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_redis_url_without_the_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "routecodex.stores.redis.store", None)
    with pytest.raises(ConfigError, match=r"pip install 'routecodex\[redis\]'"):
        open_store("redis://127.0.0.1:1", session_dir=SESSIONS)


async def test_opening_touches_no_disk(tmp_path: Path) -> None:
    store = open_store(f"file:{tmp_path}/deep/down", session_dir=SESSIONS)
    assert await store.get("clock", "one") is None
    assert await store.keys("clock") == []
    assert await store.trim("clock", entries=1, size=1) == 0
    await store.close()
    assert list(tmp_path.iterdir()) == []
