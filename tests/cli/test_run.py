"""`routecodex run` with real processes: what the agent gets, what is passed on, what is left as it was."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routecodex.cli.agents import AGENTS
from tests.cli import fake_agent
from tests.cli.process import ROOT, Command, running, serve

CONFIG = """
[server]
port = 0
drain_seconds = 0
[providers.demo]
protocol = "demo"
pace = 0
[providers.demo.models.demo-1]
context_tokens = 200000
max_output_tokens = 8000
[providers.demo.models.demo-small]
[models]
"claude-*haiku*" = "route:background"
[routing]
default = ["demo.demo-1"]
background = ["demo.demo-small"]
"""
KEYED = CONFIG + '[[server.client_keys]]\nname = "me"\nkey = "key-of-mine"\n'


def environ(folder: Path, **more: str) -> dict[str, str]:
    """Return an environment with a home of its own and the fake agents in PATH."""
    programs = fake_agent.install(folder / "bin", *(agent.executables[0] for agent in AGENTS.values()))
    (folder / "home").mkdir(exist_ok=True)
    cleared = dict.fromkeys(("ANTHROPIC_API_KEY", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "")
    cleared |= dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "CLAUDE_CONFIG_DIR"), "")
    return {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder / "home"), **cleared, **more}


def path_without_agents(folder: Path) -> str:
    """Return a PATH with a shell, which the test needs, and nothing else."""
    programs = folder / "nothing"
    programs.mkdir()
    (programs / "sh").symlink_to("/bin/sh")
    return str(programs)


def write_config(folder: Path, text: str = CONFIG) -> str:
    file = folder / "config.toml"
    file.write_text(text)
    file.chmod(0o600)
    return str(file)


async def run(folder: Path, *arguments: str, environ: Mapping[str, str]) -> Command:
    """Run a command to its end."""
    async with running(folder, *arguments, environ=environ) as command:
        await command.ended()
    return command


@asynccontextmanager
async def announced(folder: Path, config: str = CONFIG) -> AsyncIterator[str]:
    """Run a gateway that a person started; yield its address."""
    async with serve(folder, config) as server:
        yield f"http://127.0.0.1:{await server.port()}"
        assert server.process.returncode is None, "the gateway was stopped"


def servers(folder: Path) -> list[dict[str, Any]]:
    """Return the announced servers."""
    files = (folder / "user" / "servers").glob("*.json")
    return [msgspec.json.decode(file.read_bytes()) for file in files]


@pytest.mark.parametrize(
    ("action", "code"), [("exit 0", 0), ("exit 42", 42), ("die 9", 137), ("die 15", 143)]
)
async def test_the_code_of_the_agent_is_passed_on(tmp_path: Path, action: str, code: int) -> None:
    async with announced(tmp_path):
        env = environ(tmp_path, FAKE_ACTION=action)
        command = await run(tmp_path, "run", "claude", environ=env)
    assert command.process.returncode == code


async def test_stdout_is_the_agents_and_the_gateway_started_for_it_is_gone(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    command = await run(
        tmp_path, "run", "claude", "--config", config, "--", "-p", "hi", environ=environ(tmp_path)
    )
    report = fake_agent.report(command.out)
    url = report["env"]["ANTHROPIC_BASE_URL"]
    assert command.text.startswith(f"routecodex: started a gateway at {url}, log: ")
    assert report["argv"][-2:] == ["-p", "hi"]
    assert report["cwd"] == str(tmp_path)
    assert servers(tmp_path) == []
    assert [file.name for file in (tmp_path / "user" / "run").iterdir()] == ["start.lock"]


async def test_a_running_gateway_is_used_and_left_alone(tmp_path: Path) -> None:
    async with announced(tmp_path) as url:
        other = write_config(tmp_path, CONFIG.replace("demo-1", "demo-2"))
        for options, warned in (((), False), (("--config", other), True)):
            command = await run(tmp_path, "run", "claude", *options, environ=environ(tmp_path))
            assert fake_agent.report(command.out)["env"]["ANTHROPIC_BASE_URL"] == url
            assert ("warning: --config is not used" in command.text) is warned
        assert [server["url"] for server in servers(tmp_path)] == [url]


@pytest.mark.parametrize("name", AGENTS)
async def test_an_agent_that_is_not_installed_is_told_with_its_install_command(
    tmp_path: Path, name: str
) -> None:
    env = environ(tmp_path) | {"PATH": path_without_agents(tmp_path)}
    command = await run(tmp_path, "run", name, "--demo", environ=env)
    assert command.process.returncode == 127
    assert command.text == (
        f"error: {AGENTS[name].title} is not installed (no '{AGENTS[name].executables[0]}' in PATH); "
        f"install it with: {AGENTS[name].install}"
    )
    assert not (tmp_path / "user").exists()


async def test_a_program_that_does_not_exist_or_is_not_a_program(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("not a program")
    for exe in ("/nowhere/claude", str(plain)):
        command = await run(tmp_path, "run", "claude", "--exe", exe, environ=environ(tmp_path))
        assert command.process.returncode == 127
        assert f"{exe!r} is not a program" in command.text


async def test_a_program_that_the_system_cannot_start(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("neither a script nor a binary")
    broken.chmod(0o755)
    async with announced(tmp_path):
        command = await run(tmp_path, "run", "qwen", "--exe", str(broken), environ=environ(tmp_path))
    assert command.process.returncode == 1
    assert f"error: cannot start {broken}: Exec format error" in command.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cluade",), "'cluade' is not an agent; did you mean 'claude'? Agents: claude, codex, gemini"),
        (("emacs",), "'emacs' is not an agent; Agents: claude, codex"),
        (("claude", "-p", "hi"), "arguments of the agent go behind --"),
        (("claude", "--json"), "--json needs --print"),
        (("codex", "--small-model", "demo.demo-1"), "--small-model is for claude and opencode"),
        (("claude", "--demo", "--config", "x.toml"), "leave out --config and --server"),
        (("claude", "--session", " "), "a session needs a printable name"),
        (("claude", "--session", "x" * 257), "longer than 256 bytes"),
        (
            ("claude", "--demo", "--model", "demo.demo-2"),
            "no model 'demo.demo-2'; did you mean 'demo.demo-1'?",
        ),
        (("claude", "--demo", "--small-model", "zzz"), "no model 'zzz'; it has \"demo.demo-1\", "),
    ],
)
async def test_wrong_arguments(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    command = await run(tmp_path, "run", *arguments, environ=environ(tmp_path))
    assert (command.process.returncode, command.out) == (2, [])
    assert message in command.text


async def test_a_broken_configuration_is_told_with_the_command_that_checks_it(tmp_path: Path) -> None:
    config = write_config(tmp_path, CONFIG.replace("default", "defautl"))
    for options in ((), ("--print", "--json")):
        command = await run(
            tmp_path, "run", "claude", "--config", config, *options, environ=environ(tmp_path)
        )
        assert (command.process.returncode, command.out) == (2, [])
        assert f"check again with `routecodex config check --config {config}`" in command.text


async def test_without_a_configuration_the_keys_of_the_environment_are_used_for_this_run(
    tmp_path: Path,
) -> None:
    env = environ(tmp_path, DEEPSEEK_API_KEY="sk-of-a-person")
    command = await run(tmp_path, "run", "qwen", environ=env)
    assert command.process.returncode == 0, command.text
    assert command.err[0] == (
        f"routecodex: there is no {tmp_path}/user/config.toml; using the keys and servers found on this "
        "machine for this run (`routecodex init` writes it)"
    )
    assert fake_agent.report(command.out)["argv"][-1].startswith("deepseek.")
    assert not (tmp_path / "user" / "config.toml").exists()
    assert [file.name for file in (tmp_path / "user" / "run").iterdir()] == ["start.lock"]


async def test_a_gateway_that_wants_a_client_key_gets_it(tmp_path: Path) -> None:
    async with announced(tmp_path, KEYED) as url:
        env = environ(tmp_path)
        without = await run(tmp_path, "run", "claude", environ=env)
        wrong = await run(tmp_path, "run", "claude", "--key", "other", environ=env)
        right = await run(tmp_path, "run", "claude", "--key", "key-of-mine", environ=env)
        by_variable = await run(tmp_path, "run", "claude", environ=env | {"ROUTECODEX_KEY": "key-of-mine"})
        shown = await run(tmp_path, "run", "claude", "--key", "key-of-mine", "--print", "--json", environ=env)
    assert (without.process.returncode, wrong.process.returncode) == (2, 2)
    assert f"at {url} wants a client key; give one with --key, or set ROUTECODEX_KEY" in without.text
    assert "does not know this client key" in wrong.text
    for command in (right, by_variable):
        assert fake_agent.report(command.out)["env"]["ANTHROPIC_AUTH_TOKEN"] == "key-of-mine"
    plan = msgspec.json.decode("\n".join(shown.out))
    assert plan["env"]["ANTHROPIC_AUTH_TOKEN"] == "***"
    assert plan["gateway"] == {"url": url, "running": True}
    assert "key-of-mine" not in "\n".join(shown.out)


async def test_several_running_gateways_need_a_choice(tmp_path: Path) -> None:
    async with announced(tmp_path) as first, announced(tmp_path) as second:
        names = [url.removeprefix("http://").replace(":", "-") for url in (first, second)]
        env = environ(tmp_path)
        open_question = await run(tmp_path, "run", "claude", environ=env)
        chosen = await run(tmp_path, "run", "claude", "--server", names[1], environ=env)
        unknown = await run(tmp_path, "run", "claude", "--server", "nobody", environ=env)
    assert open_question.process.returncode == 2
    assert "choose one with --server: " in open_question.text
    assert all(name in open_question.text for name in names)
    assert fake_agent.report(chosen.out)["env"]["ANTHROPIC_BASE_URL"] == second
    assert unknown.process.returncode == 2


async def test_a_named_server_that_is_not_there_is_not_replaced_by_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    write_config(tmp_path / "user")
    command = await run(tmp_path, "run", "claude", "--server", "127.0.0.1-5520", environ=environ(tmp_path))
    assert (command.process.returncode, command.out) == (3, [])


async def test_a_gateway_that_cannot_be_started_is_told_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "logs").write_text("a file where a folder must be")
    config = write_config(tmp_path)
    command = await run(tmp_path, "run", "claude", "--config", config, environ=environ(tmp_path))
    assert (command.process.returncode, command.out) == (3, [])
    assert f"error: no gateway could be started: cannot write {tmp_path}/user/logs/run.log" in command.text


async def test_a_port_that_is_taken_does_not_matter(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = write_config(tmp_path, CONFIG.replace("port = 0", f"port = {taken.getsockname()[1]}"))
        command = await run(tmp_path, "run", "qwen", "--config", config, environ=environ(tmp_path))
    assert command.process.returncode == 0, command.text


async def test_a_pipe_is_the_agents_input(tmp_path: Path) -> None:
    env = {**os.environ, **environ(tmp_path, FAKE_ACTION="wait", ROUTECODEX_USER_DIR=str(tmp_path / "user"))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "routecodex", "run", "qwen", "--demo"),
        cwd=tmp_path,
        env=env | {"PYTHONPATH": str(ROOT / "src")},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    out, _ = await process.communicate(b"hello\nend\n")
    assert (process.returncode, out) == (3, b"waiting\nread hello\nread end\n")


async def test_an_http_proxy_of_the_person_is_not_used_for_the_gateway(tmp_path: Path) -> None:
    env = environ(tmp_path, HTTP_PROXY="http://127.0.0.1:9", NO_PROXY="intranet.example")
    async with announced(tmp_path):
        command = await run(tmp_path, "run", "claude", environ=env)
    got = fake_agent.report(command.out)["env"]
    assert got["NO_PROXY"] == got["no_proxy"] == "intranet.example,127.0.0.1,localhost,::1"


async def test_other_variables_stay_and_those_of_another_login_go(tmp_path: Path) -> None:
    env = environ(
        tmp_path, ANTHROPIC_API_KEY="sk-person", OPENAI_API_KEY="sk-other", ENABLE_TOOL_SEARCH="auto"
    )
    async with announced(tmp_path):
        command = await run(tmp_path, "run", "claude", environ=env)
    got = fake_agent.report(command.out)["env"]
    assert "ANTHROPIC_API_KEY" not in got
    assert (got["OPENAI_API_KEY"], got["ENABLE_TOOL_SEARCH"]) == ("sk-other", "auto")


async def test_printing_a_plan_starts_and_writes_nothing(tmp_path: Path) -> None:
    env = environ(tmp_path)
    before = sorted(os.walk(tmp_path))
    for name in AGENTS:
        command = await run(tmp_path, "run", name, "--demo", "--print", "--json", environ=env)
        plan = msgspec.json.decode("\n".join(command.out))
        assert list(plan) == [
            "agent", "version", "executable", "argv", "env", "unset", "files", "gateway",
        ]  # fmt: skip
        assert (plan["agent"], plan["executable"]) == (name, f"{tmp_path}/bin/{AGENTS[name].executables[0]}")
        assert plan["gateway"]["running"] is False
        assert all(set(file) == {"path", "content"} for file in plan["files"])
    assert sorted(os.walk(tmp_path)) == before


async def test_a_plan_of_an_agent_that_is_not_installed_is_shown_with_a_warning(tmp_path: Path) -> None:
    env = environ(tmp_path) | {"PATH": path_without_agents(tmp_path)}
    command = await run(tmp_path, "run", "crush", "--demo", "--print", environ=env)
    assert command.process.returncode == 0
    assert command.out[0] == "# Crush of unknown version"
    assert command.out[-1] == "crush"
    assert command.text.startswith("warning: Crush is not installed")
