"""`routecodex env`: the same variables as a run, for a shell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from routecodex.cli.agents import AGENTS
from tests.cli.test_run import KEYED, announced, environ, run


async def test_a_shell_that_evaluates_the_output_starts_the_agent_as_a_run_does(tmp_path: Path) -> None:
    env = environ(tmp_path, ANTHROPIC_API_KEY="sk-person")
    options = ("--key", "key-of-mine", "--model", "demo.demo-1", "--session", "it's $HOME")
    async with announced(tmp_path, KEYED):
        printed = await run(tmp_path, "env", "claude", *options, environ=env)
        started = await run(tmp_path, "run", "claude", *options, environ=env)
    assert (printed.process.returncode, printed.err) == (0, [])
    assert printed.out[-2] == "unset ANTHROPIC_API_KEY"
    assert printed.out[-1].startswith("# start: claude --settings ")
    script = "\n".join((*printed.out[:-1], printed.out[-1].removeprefix("# start: ")))
    ended = subprocess.run(["sh", "-euc", script], env=env, cwd=tmp_path, capture_output=True, check=True)
    by_shell, by_run = (msgspec.json.decode(text) for text in (ended.stdout, started.out[0]))
    assert by_shell["argv"][1:] == by_run["argv"][1:]
    names = {name for name in by_run["env"] if name.startswith(("ANTHROPIC", "CLAUDE", "ENABLE"))}
    assert {name: by_shell["env"][name] for name in names} == {name: by_run["env"][name] for name in names}
    assert "ANTHROPIC_API_KEY" not in by_shell["env"]


@pytest.mark.parametrize("shell", ["sh", "fish", "powershell"])
async def test_an_agent_without_flags_has_no_last_comment(tmp_path: Path, shell: str) -> None:
    async with announced(tmp_path):
        command = await run(tmp_path, "env", "opencode", "--shell", shell, environ=environ(tmp_path))
    assert command.process.returncode == 0
    assert len(command.out) == 3
    assert not any(line.startswith("#") for line in command.out)


async def test_files_of_an_agent_are_written(tmp_path: Path) -> None:
    env = environ(tmp_path) | {"PATH": "/usr/bin:/bin"}
    async with announced(tmp_path):
        command = await run(tmp_path, "env", "pi", environ=env)
    file = tmp_path / "user" / "agents" / "pi" / "routecodex.ts"
    assert file.exists()
    assert command.out[-1].startswith(f"# start: pi -e {file} --provider routecodex --model demo.demo-1")


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_gateway_must_run(tmp_path: Path, agent: str) -> None:
    command = await run(tmp_path, "env", agent, environ=environ(tmp_path))
    assert (command.process.returncode, command.out) == (3, [])
    assert command.text == "error: no server is running; `routecodex start` starts one"
    assert not (tmp_path / "user").exists()
