"""Every command has help with its usage; the program has a version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from routecodex import __version__
from routecodex.cli import main
from tests.cli.admin_server import announce
from tests.cli.terminal import environ, terminal


def every(command: click.Command, *names: str) -> list[tuple[str, ...]]:
    """Return the names of a command and its subcommands."""
    found = [names]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found += every(inner, *names, name)
    return found


COMMANDS = every(main)


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("names", COMMANDS, ids=[" ".join(("routecodex", *names)) for names in COMMANDS])
def test_every_command_shows_its_usage_and_says_what_it_does(names: tuple[str, ...], flag: str) -> None:
    result = CliRunner().invoke(main, [*names, flag], prog_name="routecodex")
    assert result.exit_code == 0
    usage, _, about, *_ = result.stdout.splitlines()
    assert usage.startswith(" ".join(("Usage: routecodex", *names)))
    assert about.strip()


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("strat",), "No such command 'strat'. Did you mean 'start'?"),
        (("daemon", "staus"), "No such command 'staus'. Did you mean 'status'?"),
        (("zzz",), "No such command 'zzz'."),
        (("--verzion",), "No such option '--verzion'."),
    ],
)
def test_a_command_that_is_none_is_told_with_the_one_that_was_meant(
    typed: tuple[str, ...], message: str
) -> None:
    result = CliRunner().invoke(main, typed, prog_name="routecodex")
    assert result.exit_code == 2
    assert message in result.stderr


def test_the_commands_are_these() -> None:
    assert [" ".join(names) for names in COMMANDS] == [
        "",
        "init",
        "run",
        "env",
        "serve",
        "start",
        "stop",
        "restart",
        "status",
        "service",
        "service install",
        "service status",
        "service uninstall",
        "logs",
        "daemon",
        "daemon reload",
        "daemon reset",
        "daemon reset health",
        "daemon set",
        "daemon set clock",
        "daemon set routing",
        "daemon status",
        "daemon status clock",
        "daemon status health",
        "daemon status nodes",
        "daemon status requests",
        "daemon status routing",
        "daemon status sessions",
        "explain",
        "chat",
        "config",
        "config check",
        "config presets",
        "keys",
        "keys add",
        "keys block",
        "keys import",
        "keys list",
        "keys reset",
        "keys revoke",
        "keys rotate",
        "keys set",
        "keys show",
        "keys unblock",
        "usage",
        "prices",
        "prices check",
        "prices reset",
        "prices show",
        "prices update",
        "store",
        "store check",
        "store copy",
        "doctor",
        "ui",
        "demo",
        "completion",
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_their_completion(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell], prog_name="routecodex")
    assert result.exit_code == 0
    assert f"_ROUTECODEX_COMPLETE={shell}_complete" in result.stdout


def test_commands_and_server_ids_are_completed(tmp_path: Path) -> None:
    announce(tmp_path, {"id": "alpha", "url": "http://127.0.0.1:9", "token": "t", "pid": 1})
    environ = {"_ROUTECODEX_COMPLETE": "bash_complete", "ROUTECODEX_USER_DIR": str(tmp_path)}
    for line, expected in (("routecodex da", "plain,daemon"), ("routecodex stop a", "plain,alpha")):
        count = str(len(line.split()) - 1)
        runner = CliRunner(env={**environ, "COMP_WORDS": line, "COMP_CWORD": count})
        assert runner.invoke(main, [], prog_name="routecodex").stdout.splitlines() == [expected]


@pytest.mark.parametrize(("columns", "widest"), [(80, 80), (110, 110), (250, 120)])
def test_help_is_as_wide_as_the_terminal_up_to_a_pleasant_width(
    tmp_path: Path, columns: int, widest: int
) -> None:
    with terminal(tmp_path, "chat", "--help", user=tmp_path, columns=columns) as screen:
        assert screen.ends() == 0
    longest = max(map(len, screen.shown.splitlines()))
    assert widest - 20 < longest <= widest


def test_help_in_a_pipe_has_its_old_width(tmp_path: Path) -> None:
    helps = [
        subprocess.run(
            [sys.executable, "-m", "routecodex", "chat", "--help"],
            env=environ(tmp_path, more),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for more in ({}, {"COLUMNS": "200"})
    ]
    assert helps[0] == helps[1]
    assert 60 < max(map(len, helps[0].splitlines())) <= 80


def test_the_version_is_told() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"routecodex, version {__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["serve", "--nonsense"],
        ["serve", "--port", "70000"],
        ["serve", "--port", "x"],
        ["serve", "--workers", "0"],
        ["config", "nonsense"],
        ["demo", "extra"],
        ["daemon", "set", "nonsense"],
        ["completion", "tcsh"],
        ["logs", "-n", "-1"],
    ],
)
def test_wrong_arguments_are_exit_code_2_and_a_hint(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, arguments, prog_name="routecodex")
    assert result.exit_code == 2
    assert "--help' for help." in result.stderr
