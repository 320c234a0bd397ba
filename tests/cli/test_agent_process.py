"""An agent in the foreground of a terminal: keys, signals and suspension are its own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.process import running
from tests.cli.terminal import CTRL_C, Terminal, terminal
from tests.cli.test_run import announced, environ


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
async def test_a_signal_to_the_run_reaches_the_agent(tmp_path: Path, number: signal.Signals) -> None:
    env = environ(tmp_path, FAKE_ACTION="wait")
    async with announced(tmp_path), running(tmp_path, "run", "qwen", environ=env) as command:
        await command.wait_for("waiting")
        command.signal(number)
        await command.wait_for(f"signal {int(number)}")
        assert command.process.returncode is None


@contextmanager
def in_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch, action: str) -> Iterator[Terminal]:
    for name, value in environ(folder, FAKE_ACTION=action).items():
        monkeypatch.setenv(name, value)
    with terminal(folder, "run", "qwen", "--demo", user=folder / "user") as screen:
        yield screen


async def test_the_keyboard_and_ctrl_c_are_the_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use() -> int:
        with in_terminal(tmp_path, monkeypatch, "wait") as screen:
            screen.shows("waiting")
            screen.type(CTRL_C)
            screen.shows("signal 2")
            screen.type("hello\n")
            screen.shows("read hello")
            screen.type("end\n")
            code = screen.ends()
            assert screen.shown.count("signal 2") == 1, "the agent got Ctrl-C twice"
            return code

    assert await asyncio.to_thread(use) == 3


async def test_an_agent_that_suspends_itself_suspends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use() -> int:
        with in_terminal(tmp_path, monkeypatch, "suspend 5") as screen:
            _, status = os.waitpid(screen.process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            assert "resumed" not in screen.shown
            os.kill(screen.process.pid, signal.SIGCONT)
            screen.shows("resumed")
            return screen.ends()

    assert await asyncio.to_thread(use) == 5


async def test_at_a_terminal_without_anything_to_use_the_demo_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ(tmp_path, FAKE_ACTION="exit 6").items():
        monkeypatch.setenv(name, value)
    clear_keys(monkeypatch)

    def answer(typed: str) -> int:
        with terminal(tmp_path, "run", "qwen", user=tmp_path / "user") as screen:
            screen.shows(r"Run with the demo provider\? \[y/N\]: ")
            screen.sleeps()
            screen.type(typed)
            return screen.ends()

    assert await asyncio.to_thread(answer, "y\n") == 6
    assert await asyncio.to_thread(answer, "n\n") == 2
    assert await asyncio.to_thread(answer, CTRL_C) == 130


def clear_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove keys of providers from the environment."""
    for name in list(os.environ):
        if name.endswith(("_API_KEY", "_TOKEN", "_AUTH_TOKEN")):
            monkeypatch.delenv(name)


async def test_without_a_terminal_and_anything_to_use_the_command_says_what_it_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear_keys(monkeypatch)
    async with running(tmp_path, "run", "qwen", environ=environ(tmp_path)) as command:
        assert await command.ended() == 2
    assert command.out == []
    assert command.text == (
        "error: no configuration, no key of a known provider in the environment, no model server on this "
        "machine; `routecodex init` sets one up, `--demo` tries an agent without"
    )
