"""`routecodex config check`: every problem with its place and fix, for people and for scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from routecodex.cli import main
from routecodex.providers.catalog import PRESETS
from tests.cli.terminal import terminal

GOOD = """
[providers.demo]
protocol = "demo"
[providers.demo.models.demo-1]
[routing]
default = ["demo.demo-1"]
"""
BAD = """[server]
prot = 80

[providers.up]
protocol = "chatt"
base_url = "http://127.0.0.1:1/v1"
[providers.up.models.m]
[routing]
default = ["up.x"]
"""


def check(file: Path, *more: str, environ: dict[str, str] | None = None) -> Result:
    return CliRunner(env=environ).invoke(main, ["config", "check", "--config", str(file), *more])


def written(folder: Path, text: str | bytes) -> Path:
    file = folder / "gateway.toml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def rows(result: Result) -> list[dict[str, Any]]:
    return list(msgspec.json.decode(result.stdout))


def test_a_good_file_is_fine(tmp_path: Path) -> None:
    file = written(tmp_path, GOOD)
    result = check(file)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{file}: valid, 1 provider, 1 route\n"
    as_json = check(file, "--json")
    assert (as_json.exit_code, rows(as_json), as_json.stderr) == (0, [], "")


def test_every_problem_is_told_with_its_line_and_its_fix(tmp_path: Path) -> None:
    file = written(tmp_path, BAD)
    result = check(file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        f"error: {file}:2: server.prot",
        "    is not a known key",
        '    fix: did you mean "port"?',
        f"error: {file}:5: providers.up.protocol",
        '    must be one of "chat", "demo", "gemini", "messages", "responses", got "chatt"',
        '    fix: did you mean "chat"?',
        f"error: {file}:9: routing.default[0]",
        '    names the model "x", which provider "up" does not have',
        '    fix: add [providers.up.models."x"]',
    ]


@pytest.mark.parametrize(("more", "head"), [({}, "\x1b[31merror: \x1b[0m"), ({"NO_COLOR": "1"}, "error: ")])
def test_problems_are_coloured_at_a_terminal_unless_no_color_is_set(
    tmp_path: Path, more: dict[str, str], head: str
) -> None:
    file = written(tmp_path, "[server]\nprot = 1\n")
    with terminal(tmp_path, "config", "check", "--config", str(file), user=tmp_path, more=more) as screen:
        assert screen.ends() == 2
    assert screen.shown.startswith(f"{head}{file}:")
    assert ("\x1b" in screen.shown) == (not more)


def test_scripts_get_the_same_as_json(tmp_path: Path) -> None:
    file = written(tmp_path, BAD)
    result = check(file, "--json")
    assert (result.exit_code, result.stderr) == (2, "")
    assert [(row["line"], row["path"], row["severity"]) for row in rows(result)] == [
        (2, "server.prot", "error"),
        (5, "providers.up.protocol", "error"),
        (9, "routing.default[0]", "error"),
    ]
    assert rows(result)[0] == {
        "file": str(file),
        "line": 2,
        "path": "server.prot",
        "severity": "error",
        "message": "is not a known key",
        "fix": 'did you mean "port"?',
    }


UNREADABLE: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "the file does not exist"),
    "not-utf8": (b"[server]\nid = '\xff'\n", "is not UTF-8 text (byte 15)"),
    "not-toml": (b"[server\n", "is not valid TOML at line 1"),
}


@pytest.mark.parametrize(("content", "message"), UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("command", [["config", "check"], ["config", "check", "--json"], ["serve"]])
def test_a_file_that_cannot_be_read_is_a_problem_like_any_other(
    tmp_path: Path, command: list[str], content: bytes | None, message: str
) -> None:
    file = tmp_path / "absent.toml" if content is None else written(tmp_path, content)
    result = CliRunner().invoke(main, [*command, "--config", str(file)])
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    if "--json" in command:
        (row,) = rows(result)
        assert row["message"].startswith(message)
        assert row["fix"]
        return
    first, text, fix, *_ = result.stderr.splitlines()
    assert first.startswith(f"error: {file}")
    assert text.strip().startswith(message)
    assert fix.startswith("    fix: ")


def test_a_byte_order_mark_is_no_problem(tmp_path: Path) -> None:
    assert check(written(tmp_path, b"\xef\xbb\xbf" + GOOD.encode())).exit_code == 0


def test_a_secret_that_is_missing_is_named_and_one_that_is_there_is_not_shown(tmp_path: Path) -> None:
    text = GOOD + (
        '[providers.up]\nprotocol = "chat"\nbase_url = "http://127.0.0.1:1/v1"\n'
        'auth = [{ value = "${SOME_KEY}" }]\nmodels = { "m" = {} }\ntypo = 1\n'
    )
    file = written(tmp_path, text)
    missing = check(file, environ={"SOME_KEY": None})  # type: ignore[dict-item]  # None unsets it
    assert missing.exit_code == 2
    assert "SOME_KEY" in missing.stderr
    given = check(file, environ={"SOME_KEY": "very-secret"})
    assert "SOME_KEY" not in given.stderr
    assert "very-secret" not in given.output


@pytest.mark.parametrize("place", ["ROUTECODEX_CONFIG_PATH", "ROUTECODEX_USER_DIR"])
def test_without_a_name_the_environment_says_where_the_file_is(tmp_path: Path, place: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(GOOD)
    values = {"ROUTECODEX_CONFIG_PATH": str(file), "ROUTECODEX_USER_DIR": str(tmp_path)}
    unset = dict.fromkeys(values)
    result = CliRunner(env={**unset, place: values[place]}).invoke(main, ["config", "check"])
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{file}: valid")


def test_the_presets_are_listed_for_people_and_for_scripts() -> None:
    shown = CliRunner().invoke(main, ["config", "presets"])
    assert (shown.exit_code, shown.stderr) == (0, "")
    head, *lines = [line.split() for line in shown.stdout.splitlines()]
    assert head == ["PRESET", "PROVIDER", "REGION", "PLAN", "PROTOCOLS", "KEY", "ALIASES"]
    zai = "zai Z.ai GLM global usage chat messages ZAI_API_KEY ZHIPU_API_KEY glm glm-anthropic"
    assert zai.split() in lines
    as_json = CliRunner().invoke(main, ["config", "presets", "--json"])
    assert (as_json.exit_code, as_json.stderr) == (0, "")
    listed = msgspec.json.decode(as_json.stdout)
    assert list(listed) == ["presets"]
    assert [row["preset"] for row in listed["presets"]] == [line[0] for line in lines]
    assert {name for row in listed["presets"] for name in (row["preset"], *row.get("aliases", []))} == {
        *PRESETS
    }
    assert listed["presets"][1] == {
        "preset": "anthropic",
        "name": "Anthropic",
        "region": "global",
        "plan": "usage",
        "base_url": {"messages": "https://api.anthropic.com"},
        "env": ["ANTHROPIC_API_KEY"],
        "auth": "x-api-key",
        "models": "discover",
        "dialect": [],
        "source": [
            "anomalyco/models.dev providers/anthropic/provider.toml (2026-07-02)",
            "present catalogue, src/routecodex/providers/catalog.py",
        ],
        "prices": "anthropic",
    }
