"""Keys in a file that other users can read are a warning, at every start and in `config check`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from routecodex.cli import main
from routecodex.config import examine

ROUTING = '[routing]\ndefault = ["a.m"]\n'
KEY = (
    '[providers.a]\nprotocol = "chat"\nbase_url = "https://a.example/v1"\n'
    "auth = [{{ {} }}]\n[providers.a.models.m]\n"
)
SERVER = '[server]\nadmin_token = "{}"\nclient_keys = [{{ name = "laptop", key = "{}" }}]\n'
ENVIRON = {"A_KEY": "k"}
FIX = "chmod 600 gateway.toml, or write ${NAME} and set the variable"


def warnings(text: str, mode: int) -> list[tuple[str, str, str]]:
    _, problems = examine(ROUTING + text, source="gateway.toml", environ=ENVIRON, mode=mode)
    return [(one.path, one.message, one.fix) for one in problems if "other users" in one.message]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o100664])
def test_a_key_in_a_file_that_others_can_read_is_a_warning(mode: int) -> None:
    message = f"the file holds a key, and other users can read it (mode {mode & 0o777:o})"
    assert warnings(KEY.format('value = "k"'), mode) == [("providers.a.auth[0].value", message, FIX)]


def test_client_keys_and_the_admin_token_count_too() -> None:
    [(path, message, _)] = warnings(SERVER.format("t", "k") + KEY.format('value = "k"'), 0o644)
    assert (path, message.partition(",")[0]) == ("server.client_keys[0].key", "the file holds 3 keys")


@pytest.mark.parametrize("mode", [0, 0o600, 0o400, 0o700])
def test_a_file_of_its_owner_alone_may_hold_keys(mode: int) -> None:
    assert warnings(SERVER.format("t", "k") + KEY.format('value = "k"'), mode) == []


@pytest.mark.parametrize("source", ['value = "${A_KEY}"', 'env = "A_KEY"'])
def test_names_of_variables_are_no_secret(source: str) -> None:
    assert warnings(KEY.format(source) + SERVER.format("${A_KEY}", "x${A_KEY}"), 0o644) == []


def test_config_check_warns_and_passes(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(ROUTING + KEY.format('value = "very-secret"'))
    file.chmod(0o644)
    open_to_all = CliRunner().invoke(main, ["config", "check", "--config", str(file)])
    file.chmod(0o600)
    own = CliRunner().invoke(main, ["config", "check", "--config", str(file)])
    assert (open_to_all.exit_code, own.exit_code) == (0, 0)
    assert "other users can read it (mode 644)" in open_to_all.stderr
    assert f"chmod 600 {file}" in open_to_all.stderr
    assert "other users" not in own.stderr
    assert "very-secret" not in open_to_all.output
