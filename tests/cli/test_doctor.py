"""`routecodex doctor` in its own process, with providers on this machine."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from routecodex.cli.agents import AGENTS
from tests.cli.checks.agent_model import answers_well
from tests.cli.process import running, serve
from tests.kit import answers
from tests.kit.gateway import one_target
from tests.kit.upstream import Request, Upstream
from tests.server_tools.clock.time_server import time_server

DEMO = """[providers.demo]
protocol = "demo"
pace = 0
[providers.demo.models.m]
[routing]
default = ["demo.m"]
"""
MACHINE = ["config", "port", "disk", "permissions", "clock", "proxy"]
CLAUDE = ("text", "tool_call", "tool_result", "title", "compaction", "count_tokens")
NO_PROXY = dict.fromkeys(
    ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"), ""
)


def write(folder: Path, config: str) -> Path:
    file = folder / "gateway.toml"
    file.write_text("[server]\nport = 0\n" + config if "[server]" not in config else config)
    file.chmod(0o600)
    return file


async def doctor(
    folder: Path, *arguments: str, environ: dict[str, str] | None = None
) -> tuple[int, str, str]:
    """Run the command; return exit code, stdout and stderr."""
    settings = {"HOME": str(folder), **NO_PROXY, **(environ or {})}
    async with running(folder, "doctor", *arguments, environ=settings) as command:
        code = await command.ended()
        return code, "\n".join(command.out), "\n".join(command.err)


async def checks(folder: Path, config: str, *arguments: str, **environ: str) -> tuple[int, dict[str, Any]]:
    """Run the command with `--json`; return the exit code and the checks by id."""
    file = write(folder, config)
    code, out, err = await doctor(folder, *arguments, "--config", str(file), "--json", environ=environ)
    assert err == ""
    value = json.loads(out)
    assert value.keys() == {"ok", "checks"}
    assert value["ok"] == (code == 0)
    for check in value["checks"]:
        assert list(check) == ["id", "status", "message", "fix"]
        assert check["status"] in ("ok", "warn", "fail", "skip")
        assert bool(check["fix"]) == (check["status"] in ("warn", "fail"))
    found = {check["id"]: check for check in value["checks"]}
    assert len(found) == len(value["checks"])
    return code, found


def statuses(found: dict[str, Any]) -> dict[str, str]:
    return {name: check["status"] for name, check in found.items()}


def with_program(folder: Path, name: str, version: str) -> dict[str, str]:
    """Return an environment in which the agent is installed."""
    program = folder / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\necho {version}\n")
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


async def test_without_an_agent_the_machine_and_the_providers_are_checked(tmp_path: Path) -> None:
    code, found = await checks(tmp_path, DEMO, "--offline")
    assert code == 0
    assert statuses(found) == {**dict.fromkeys(MACHINE, "ok"), "clock": "skip", "provider.demo": "ok"}
    assert list(found) == [*MACHINE, "provider.demo"]


async def test_people_get_a_list_with_fixes(tmp_path: Path) -> None:
    file = write(tmp_path, DEMO)
    file.chmod(0o644)
    (tmp_path / "user" / "keys").mkdir(parents=True)
    (tmp_path / "user" / "keys" / "up").write_text("secret")
    code, out, err = await doctor(tmp_path, "--offline", "--config", str(file))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"✓ config: {file} is valid: 1 provider, 1 route"
    assert "! permissions: other users can read this file, which holds keys: " in out
    assert f"    fix: chmod 600 {tmp_path / 'user' / 'keys' / 'up'}" in lines
    assert "- clock: not compared with network time, because of --offline" in lines
    assert lines[-1] == "7 checks: 5 ok, 1 warning, 1 skipped"


async def test_a_terminal_without_unicode_gets_plain_signs(tmp_path: Path) -> None:
    file = write(tmp_path, DEMO)
    environ = {"PYTHONIOENCODING": "ascii"}
    code, out, _ = await doctor(tmp_path, "--offline", "--config", str(file), environ=environ)
    assert code == 0
    assert out.startswith("+ config: ")


async def test_a_missing_configuration_fails_and_names_init(tmp_path: Path) -> None:
    code, out, _ = await doctor(tmp_path, "--offline", "--json")
    value = json.loads(out)
    assert (code, value["ok"]) == (1, False)
    assert [check["id"] for check in value["checks"]] == MACHINE
    assert "routecodex init" in value["checks"][0]["fix"]
    assert value["checks"][1]["status"] == "skip"


async def test_a_broken_configuration_fails_and_offers_its_check(tmp_path: Path) -> None:
    code, found = await checks(tmp_path, DEMO.replace("demo.m", "demo.x"), "--offline")
    assert (code, found["config"]["status"]) == (1, "fail")
    assert "routecodex config check" in found["config"]["fix"]
    assert "demo.x" in found["config"]["message"]


async def test_a_warning_of_the_configuration_does_not_fail(tmp_path: Path) -> None:
    config = DEMO.replace('default = ["demo.m"]', 'default = ["demo.m", "demo.m"]')
    code, found = await checks(tmp_path, config, "--offline")
    assert (code, found["config"]["status"]) == (0, "warn")


async def test_a_running_gateway_has_its_port(tmp_path: Path) -> None:
    async with serve(tmp_path, DEMO) as command:
        port = await command.port()
        code, found = await checks(tmp_path, f"[server]\nport = {port}\n{DEMO}", "--offline")
    assert code == 0
    assert found["port"]["message"].startswith(f"the gateway 127.0.0.1-{port} (pid ")


async def test_a_provider_that_is_down_fails(tmp_path: Path) -> None:
    async with Upstream() as upstream:
        config = one_target("chat", upstream)
    code, found = await checks(tmp_path, config, "--offline")
    assert (code, found["provider.up"]["status"]) == (1, "fail")


async def test_keys_are_tried_only_when_asked(tmp_path: Path) -> None:
    async with Upstream(lambda _request: answers.error("chat", 401, "invalid api key")) as upstream:
        config = one_target("chat", upstream)
        code, found = await checks(tmp_path, config, "--offline")
        assert (code, upstream.requests) == (0, [])
        code, found = await checks(tmp_path, config, "--offline", "--keys")
    assert (code, found["provider.up.primary"]["status"]) == (1, "fail")
    assert "secret-up" not in json.dumps(found)


async def test_an_agent_that_is_not_installed_fails_and_its_shapes_are_still_tried(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sh").symlink_to("/bin/sh")
    file = write(tmp_path, DEMO)
    environ = {"PATH": str(programs)}
    code, out, _ = await doctor(tmp_path, "claude", "--config", str(file), "--json", environ=environ)
    found = {check["id"]: check for check in json.loads(out)["checks"]}
    assert code == 1
    assert found["claude.installed"]["fix"] == AGENTS["claude"].install
    assert statuses(found) == {
        "config": "ok",
        "claude.installed": "fail",
        "claude.settings": "ok",
        **{f"claude.demo.m.{shape}": "ok" for shape in CLAUDE},
    }


async def test_an_agent_that_works_passes(tmp_path: Path) -> None:
    environ = with_program(tmp_path, "claude", "2.1.326")
    async with Upstream(partial(answers_well, "chat")) as upstream:
        code, found = await checks(tmp_path, one_target("chat", upstream), "claude", "--offline", **environ)
    assert code == 0
    assert set(statuses(found).values()) == {"ok"}
    assert found["claude.installed"]["message"] == f"Claude Code 2.1.326 at {tmp_path}/bin/claude"
    assert not (tmp_path / "user").exists()


async def test_several_agents_are_checked_in_order(tmp_path: Path) -> None:
    environ = with_program(tmp_path, "aider", "aider 0.86.2") | with_program(tmp_path, "pi", "0.73.1")
    code, found = await checks(tmp_path, DEMO, "pi", "aider", "pi", "--offline", **environ)
    assert code == 0
    assert list(found) == [
        "config",
        *("pi.installed", "pi.settings"),
        *(f"pi.demo.m.{shape}" for shape in ("text", "tool_call", "tool_result", "compaction")),
        *("aider.installed", "aider.settings", "aider.demo.m.text", "aider.demo.m.compaction"),
    ]


TWO = DEMO.replace("[providers.demo.models.m]", "[providers.demo.models.m]\n[providers.demo.models.other]")


async def test_targets_of_routes_are_checked_unless_others_are_named(tmp_path: Path) -> None:
    environ = with_program(tmp_path, "aider", "0.86.2")
    _, by_route = await checks(tmp_path, TWO, "aider", "--offline", **environ)
    _, named = await checks(tmp_path, TWO, "aider", "--offline", "--target", "demo.other", **environ)
    _, provider = await checks(tmp_path, TWO, "aider", "--offline", "--target", "demo", **environ)
    found = [
        {name.removeprefix("aider.").rpartition(".")[0] for name in one if ".text" in name}
        for one in (by_route, named, provider)
    ]
    assert found == [{"demo.m"}, {"demo.other"}, {"demo.m", "demo.other"}]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("claude", "--target", "demo.n"), "no target is called 'demo.n'; did you mean 'demo.m'?"),
        (("cloude",), "'cloude' is not one of"),
    ],
)
async def test_wrong_names_are_usage_errors(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    file = write(tmp_path, DEMO)
    code, out, err = await doctor(tmp_path, *arguments, "--config", str(file))
    assert (code, out) == (2, "")
    assert words in err


async def test_a_running_gateway_with_this_file_is_used(tmp_path: Path) -> None:
    """Its client key is taken from the file, and it is left running."""
    async with Upstream(partial(answers_well, "chat")) as upstream:
        keys = 'client_keys = [{ name = "laptop", key = "client-key-1" }]'
        text = one_target("chat", upstream, server=keys)
        async with serve(tmp_path, text) as command:
            await command.port()
            file = str(tmp_path / "gateway.toml")
            environ = with_program(tmp_path, "aider", "0.86.2")
            code, out, _ = await doctor(tmp_path, "aider", "--config", file, "--json", environ=environ)
            assert command.process.returncode is None
            command.signal()
            await command.ended()
        assert code == 0, out
        assert len(upstream.requests) == 2
    (log,) = (tmp_path / "user" / "sessions").rglob("requests.jsonl")
    logged = log.read_text().splitlines()
    assert len(logged) == 2
    assert all("laptop" in line for line in logged)


async def test_a_gateway_with_another_file_is_left_alone(tmp_path: Path) -> None:
    async with Upstream(partial(answers_well, "chat")) as upstream, serve(tmp_path, DEMO) as command:
        await command.port()
        other = tmp_path / "other"
        other.mkdir()
        file = write(other, one_target("chat", upstream))
        environ = with_program(tmp_path, "aider", "0.86.2")
        code, _, _ = await doctor(tmp_path, "aider", "--config", str(file), environ=environ)
        assert code == 0
        assert len(upstream.requests) == 2


async def test_a_failing_target_fails_while_others_pass(tmp_path: Path) -> None:
    def script(request: Request) -> Any:
        return answers.error("chat", 500, "it broke")

    environ = with_program(tmp_path, "aider", "0.86.2")
    async with Upstream(script) as upstream:
        config = one_target("chat", upstream).replace('["up.m"]', '["up.m", "demo.m"]')
        config += '[providers.demo]\nprotocol = "demo"\npace = 0\n[providers.demo.models.m]\n'
        code, found = await checks(tmp_path, config, "aider", "--offline", **environ)
    assert code == 1
    assert statuses(found)["aider.up.m.text"] == "fail"
    assert statuses(found)["aider.up.m.compaction"] == "skip"
    assert statuses(found)["aider.demo.m.text"] == "ok"


async def test_settings_of_the_person_are_not_changed(tmp_path: Path) -> None:
    settings = tmp_path / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"env": {"ANTHROPIC_BASE_URL": "https://elsewhere"}}')
    environ = with_program(tmp_path, "claude", "2.1.326")
    before = sorted(tmp_path.rglob("*"))
    code, found = await checks(tmp_path, DEMO, "claude", "--offline", **environ)
    assert (code, found["claude.settings"]["status"]) == (0, "warn")
    assert settings.read_text() == '{"env": {"ANTHROPIC_BASE_URL": "https://elsewhere"}}'
    assert set(tmp_path.rglob("*")) - set(before) == {tmp_path / "gateway.toml"}


async def test_a_proxy_that_cannot_be_used_fails_the_shapes_and_the_keys(tmp_path: Path) -> None:
    async with Upstream(partial(answers_well, "chat")) as upstream:
        config = one_target("chat", upstream).replace("127.0.0.1", "far.invalid")
    environ = with_program(tmp_path, "aider", "0.86.2") | {"http_proxy": "socks5://127.0.0.1:1080"}
    code, found = await checks(tmp_path, config, "aider", "--keys", **environ)
    failing = ["provider.up.primary", "aider.up.m.text", "aider.up.m.compaction"]
    assert code == 1
    assert [name for name, status in statuses(found).items() if status == "fail"] == failing
    assert all("http_proxy names a 'socks5' proxy" in found[name]["message"] for name in failing)


async def test_offline_asks_no_time_server_even_for_the_clock_of_the_gateway(tmp_path: Path) -> None:
    asked: list[bytes] = []

    def reply(question: bytes) -> list[bytes]:
        asked.append(question)
        return []

    environ = with_program(tmp_path, "aider", "0.86.2")
    async with time_server(reply) as address:
        clock = f'[server_tools.clock]\nenabled = true\nntp = {{ servers = ["{address}"] }}\n'
        code, _ = await checks(tmp_path, DEMO + clock, "aider", "--offline", **environ)
        assert (code, asked) == (0, [])


async def test_an_operator_who_sends_requests_elsewhere_is_noticed(tmp_path: Path) -> None:
    environ = with_program(tmp_path, "aider", "0.86.2")
    async with serve(tmp_path, TWO) as command:
        await command.port()
        async with running(tmp_path, "daemon", "set", "routing", "--sticky", "demo.other") as setting:
            assert await setting.ended() == 0, setting.text
        file = str(tmp_path / "gateway.toml")
        arguments = ("aider", "--target", "demo.m", "--config", file, "--json")
        code, out, _ = await doctor(tmp_path, *arguments, environ=environ)
    found = {check["id"]: check for check in json.loads(out)["checks"]}
    assert code == 0
    assert found["aider.demo.m.text"]["status"] == "warn"
    assert "instead" in found["aider.demo.m.text"]["message"]
