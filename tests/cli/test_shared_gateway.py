"""The gateway of several runs: it lives as long as one of them does, however they end."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest

from routecodex.cli.admin_client import is_running
from tests.cli import fake_agent
from tests.cli.process import Command, running, until
from tests.cli.test_run import CONFIG, announced, environ, run, servers, write_config


def start(folder: Path, *more: str) -> AbstractAsyncContextManager[Command]:
    """Start an agent that waits until it is told to end."""
    env = environ(folder, FAKE_ACTION="wait")
    return running(folder, "run", "qwen", "--config", write_config(folder), *more, environ=env)


def gateway(folder: Path) -> int:
    """Return the process of the only gateway."""
    (server,) = servers(folder)
    return int(server["pid"])


async def stop(command: Command) -> None:
    """End the agent of a run by a signal that it does not handle."""
    alive = [child for child in command.workers() if child.status() != psutil.STATUS_ZOMBIE]
    (agent,) = [child for child in alive if "qwen" in " ".join(child.cmdline())]
    agent.send_signal(signal.SIGKILL)
    assert await command.ended() == 137


async def test_a_gateway_ends_with_the_last_of_two_runs(tmp_path: Path) -> None:
    async with start(tmp_path) as first, start(tmp_path) as second:
        await first.wait_for("waiting")
        await second.wait_for("waiting")
        pid = gateway(tmp_path)
        told = [line for line in (*first.err, *second.err) if "started a gateway" in line]
        assert len(told) == 1
        await stop(first)
        assert is_running(pid)
        await stop(second)
        assert not is_running(pid)
    assert servers(tmp_path) == []


@pytest.mark.parametrize("killed", ["first", "second"])
async def test_a_run_that_is_killed_gives_up_its_share(tmp_path: Path, killed: str) -> None:
    async with start(tmp_path) as first:
        await first.wait_for("waiting")
        async with start(tmp_path) as second:
            await second.wait_for("waiting")
            pid = gateway(tmp_path)
            victim, other = (first, second) if killed == "first" else (second, first)
            victim.signal(signal.SIGKILL)
            await until(lambda: not is_running(victim.process.pid), "the run ends")
            assert is_running(pid)
            await stop(other)
            assert not is_running(pid)


async def test_a_gateway_ends_when_its_only_run_is_killed(tmp_path: Path) -> None:
    async with start(tmp_path) as command:
        await command.wait_for("waiting")
        pid = gateway(tmp_path)
        command.signal(signal.SIGKILL)
        await until(lambda: not is_running(pid), "the gateway ends")
        await until(lambda: servers(tmp_path) == [], "its announcement is removed")


async def test_a_run_after_a_killed_gateway_starts_another_and_removes_what_is_left(tmp_path: Path) -> None:
    async with start(tmp_path) as command:
        await command.wait_for("waiting")
        (server,) = servers(tmp_path)
        await kill(int(server["pid"]))
        await stop(command)
    after = await run(
        tmp_path, "run", "claude", "--config", write_config(tmp_path), environ=environ(tmp_path)
    )
    assert after.process.returncode == 0, after.text
    assert fake_agent.report(after.out)["env"]["ANTHROPIC_BASE_URL"] != server["url"]
    assert [file.name for file in (tmp_path / "user" / "run").iterdir()] == ["start.lock"]


async def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not is_running(pid), "the gateway ends")


async def test_many_runs_at_once_share_one_gateway(tmp_path: Path) -> None:
    config, env = write_config(tmp_path), environ(tmp_path)
    runs = [run(tmp_path, "run", "claude", "--config", config, environ=env) for _ in range(4)]
    ended = await asyncio.gather(*runs)
    assert [command.process.returncode for command in ended] == [0] * 4, [one.text for one in ended]
    assert servers(tmp_path) == []


async def test_a_gateway_of_a_person_is_preferred_to_that_of_runs(tmp_path: Path) -> None:
    async with start(tmp_path) as command:
        await command.wait_for("waiting")
        async with announced(tmp_path) as url:
            other = await run(tmp_path, "run", "claude", environ=environ(tmp_path))
            assert fake_agent.report(other.out)["env"]["ANTHROPIC_BASE_URL"] == url


async def test_the_demo_has_a_gateway_of_its_own(tmp_path: Path) -> None:
    env = environ(tmp_path)
    async with start(tmp_path) as command:
        await command.wait_for("waiting")
        (real,) = servers(tmp_path)
        demo = await run(tmp_path, "run", "claude", "--demo", environ=env)
        assert fake_agent.report(demo.out)["env"]["ANTHROPIC_BASE_URL"] != real["url"]
        joined = await run(tmp_path, "run", "claude", environ=env)
        assert fake_agent.report(joined.out)["env"]["ANTHROPIC_BASE_URL"] == real["url"]
    waiting = running(tmp_path, "run", "qwen", "--demo", environ=env | {"FAKE_ACTION": "wait"})
    async with waiting as command:
        await command.wait_for("waiting")
        (demo_server,) = servers(tmp_path)
        config = write_config(tmp_path)
        other = await run(tmp_path, "run", "claude", "--config", config, environ=env)
        again = await run(tmp_path, "run", "claude", "--demo", environ=env)
        assert fake_agent.report(other.out)["env"]["ANTHROPIC_BASE_URL"] != demo_server["url"]
        assert fake_agent.report(again.out)["env"]["ANTHROPIC_BASE_URL"] == demo_server["url"]


async def test_state_is_kept_where_a_server_that_is_started_keeps_it(tmp_path: Path) -> None:
    config = write_config(tmp_path, CONFIG.replace("port = 0", "port = 5520"))
    await run(tmp_path, "run", "claude", "--config", config, environ=environ(tmp_path))
    folders = [folder.name for folder in (tmp_path / "user" / "sessions").iterdir()]
    assert folders == ["127.0.0.1-5520"]
