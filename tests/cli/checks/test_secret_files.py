from __future__ import annotations

from pathlib import Path

import pytest

from routecodex.cli.checks.secret_files import check_permissions
from routecodex.cli.config import examine_file

CONFIG = """
[providers.up]
protocol = "chat"
base_url = "http://127.0.0.1:9/v1"
auth = [{ AUTH }]
[providers.up.models.m]
[routing]
default = ["up.m"]
"""


def write_config(folder: Path, auth: str, *, mode: int = 0o600) -> Path:
    file = folder / "config.toml"
    file.write_text(CONFIG.replace("AUTH", auth))
    file.chmod(mode)
    return file


def check(file: Path, user_dir: Path) -> tuple[str, str, str]:
    result = check_permissions(file, examine_file(file)[0], user_dir)
    assert result.id == "permissions"
    return result.status, result.message, result.fix


def test_files_of_the_owner_alone_are_ok(tmp_path: Path) -> None:
    file = write_config(tmp_path, 'value = "sk-secret-1"')
    assert check(file, tmp_path / "user")[0] == "ok"


def test_keys_in_a_file_that_others_can_read_are_a_warning(tmp_path: Path) -> None:
    file = write_config(tmp_path, 'value = "sk-secret-1"', mode=0o644)
    status, message, fix = check(file, tmp_path / "user")
    assert (status, fix) == ("warn", f"chmod 600 {file}")
    assert "sk-secret-1" not in message


def test_a_file_that_only_names_variables_may_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UP_KEY", "sk-secret-1")
    file = write_config(tmp_path, 'env = "UP_KEY"', mode=0o644)
    assert check(file, tmp_path / "user")[0] == "ok"


def test_a_key_file_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    key = tmp_path / "up key"
    key.write_text("sk-secret-1\n")
    key.chmod(0o640)
    file = write_config(tmp_path, 'file = "up key"', mode=0o644)
    status, _, fix = check(file, tmp_path / "user")
    assert (status, fix) == ("warn", f"chmod 600 '{key}'")
    key.chmod(0o600)
    assert check(file, tmp_path / "user")[0] == "ok"


@pytest.mark.parametrize("name", ["admin-token", "keys/up", "servers/127.0.0.1-5520.json"])
def test_secrets_of_the_user_dir_are_checked(tmp_path: Path, name: str) -> None:
    secret = tmp_path / "user" / name
    secret.parent.mkdir(parents=True)
    secret.write_text("{}")
    secret.chmod(0o644)
    status, message, fix = check(tmp_path / "none.toml", tmp_path / "user")
    assert (status, fix) == ("warn", f"chmod 600 {secret}")
    assert str(secret) in message
