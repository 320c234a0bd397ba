"""What every command has: help that shows its usage, and a version."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from routecodex import __version__
from routecodex.cli import main


def every(command: click.Command, *names: str) -> list[tuple[str, ...]]:
    """The names of the command and of all below it."""
    below = command.commands.items() if isinstance(command, click.Group) else ()
    return [names, *(path for name, inner in below for path in every(inner, *names, name))]


COMMANDS = every(main)


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("names", COMMANDS, ids=[" ".join(("routecodex", *names)) for names in COMMANDS])
def test_every_command_shows_its_usage_and_says_what_it_does(names: tuple[str, ...], flag: str) -> None:
    result = CliRunner().invoke(main, [*names, flag], prog_name="routecodex")
    assert result.exit_code == 0
    usage, _, about, *_ = result.stdout.splitlines()
    assert usage.startswith(" ".join(("Usage: routecodex", *names)))
    assert about.strip()


def test_the_commands_are_these() -> None:
    assert set(COMMANDS) == {(), ("serve",), ("demo",), ("config",), ("config", "check")}


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
    ],
)
def test_wrong_arguments_are_exit_code_2_and_a_hint(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, arguments, prog_name="routecodex")
    assert result.exit_code == 2
    assert "--help' for help." in result.stderr
