"""Writing: key files are private, a file is replaced as a whole, and a failure leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from routecodex.cli.config_write import free_key_file, require_writable, write_all
from routecodex.config.values import Secret

KEY = Secret("sk-typed")


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_keys_and_a_new_file_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    key = tmp_path / "user" / "keys" / "zai"
    write_all(tmp_path / "user" / "config.toml", "x = 1\n", keys={key: KEY})
    assert files(tmp_path) == ["user/config.toml", "user/keys/zai"]
    assert key.read_text() == "sk-typed\n"
    modes = [path.stat().st_mode & 0o777 for path in (key, key.parent, tmp_path / "user" / "config.toml")]
    assert modes == [0o600, 0o700, 0o600]


def test_a_file_keeps_its_mode_and_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.toml", tmp_path / "config.toml"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_all(link, "new\r\n", keys={})
    assert link.is_symlink()
    assert (real.read_bytes(), real.stat().st_mode & 0o777) == (b"new\r\n", 0o640)


def test_the_old_file_is_copied_first(tmp_path: Path) -> None:
    file, backup = tmp_path / "config.toml", tmp_path / "config.toml.bak-1"
    file.write_text("old")
    write_all(file, "new", keys={}, back_up_as=backup)
    assert (file.read_text(), backup.read_text()) == ("new", "old")


def test_a_file_that_cannot_be_written_leaves_no_key_behind(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(OSError, match=r"config\.toml"):
        write_all(tmp_path / "config.toml", "x", keys={tmp_path / "keys" / "zai": KEY})
    assert files(tmp_path) == []


def test_a_key_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "zai").write_text("other")
    assert free_key_file(tmp_path, "zai") == tmp_path / "zai-2"
    with pytest.raises(FileExistsError):
        write_all(tmp_path / "config.toml", "x", keys={tmp_path / "zai": KEY})
    assert files(tmp_path) == ["zai"]
    assert (tmp_path / "zai").read_text() == "other"


def test_a_path_that_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    require_writable(tmp_path / "new" / "folder" / "config.toml")
    with pytest.raises(IsADirectoryError):
        require_writable(tmp_path)
    with pytest.raises(NotADirectoryError):
        require_writable(tmp_path / "file" / "config.toml")
    assert files(tmp_path) == ["file"]
