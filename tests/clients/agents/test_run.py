"""`routecodex run` with every real agent: it works, its files stay as they were, the gateway goes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest

from tests.clients.agents.launches import CASES, LaunchCase, digests, launch, launch_environment, launch_with
from tests.clients.agents.programs import command, run
from tests.clients.agents.scene import (
    FOLLOWUP,
    NOTHING_ELSE,
    TWICE,
    Rule,
    Scene,
    open_model,
    open_scene,
    rule,
)

pytestmark = pytest.mark.agents

SAYS = "It says sunny."
FAST = ("claude", "codex", "qwen", "pi")
"""Agents that `make test` starts by the command; each takes a second or two."""
TITLE = rule("You are a title generator.", "Weather", system=True)


def rules(case: LaunchCase) -> tuple[Rule, ...]:
    return (TITLE, rule("READ it", case.reads), rule("sunny", SAYS))


def announced(scene: Scene) -> list[dict[str, object]]:
    files = (scene.home.parent / "gateway" / "user" / "servers").glob("*.json")
    return [msgspec.json.decode(file.read_bytes()) for file in files]


def gateways_of(scene: Scene) -> list[int]:
    """Return the processes of gateways with the scene's user dir."""
    user = str(scene.home.parent / "gateway" / "user")
    lines = (
        (process.pid, " ".join(process.info["cmdline"] or ())) for process in psutil.process_iter(["cmdline"])
    )
    return [pid for pid, line in lines if user in line and "routecodex" in line]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.short] if name in FAST else []) for name in CASES]
)
async def test_a_person_with_other_settings_gets_a_tool_loop_and_keeps_every_file(
    tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    async with open_model(tmp_path, "chat", *rules(case)) as scene:
        launch_environment(scene, case)
        before = digests(scene.home)
        ended = await launch(scene, case, "READ it")
        assert ended.code == 0, ended.err
        assert "started a gateway at" in ended.err
        if name == "aider":
            assert (scene.work / "b.txt").read_text() == "sunny\n"
        else:
            assert SAYS in ended.out, ended
            assert len([model for model in scene.models() if model == "main"]) == 2
        after = digests(scene.home)
        assert {file: after.get(file) for file in before if file not in case.own} == {
            file: digest for file, digest in before.items() if file not in case.own
        }
        assert announced(scene) == []
        assert gateways_of(scene) == []


@pytest.mark.parametrize("name", CASES)
async def test_instructions_and_stop_messages_work_and_a_running_gateway_stays(
    tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    async with open_scene(tmp_path, "chat", TITLE) as scene:
        ended = await launch(scene, case, f"<**!up.sub**> {TWICE} hello")
        assert ended.code == 0, ended.err
        assert NOTHING_ELSE in ended.out
        assert "started a gateway" not in ended.err
        # Qwen Code sends a request of its own behind the answer, to keep memories.
        followed = [FOLLOWUP in text for text in scene.news("sub")]
        assert (followed[:3], followed.count(True)) == ([False, True, True], 2)
        assert len(announced(scene)) == 1


@pytest.mark.parametrize("name", CASES)
async def test_a_client_key_and_a_session_reach_the_gateway(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    keys = '[[server.client_keys]]\nname = "me"\nkey = "key-of-mine"\n'
    async with open_scene(tmp_path, "chat", TITLE, settings=keys) as scene:
        ended = await launch(scene, case, "hello", "--key", "key-of-mine", "--session", "my work")
        assert (ended.code, NOTHING_ELSE in ended.out) == (0, True), ended
    lines = [line for line in scene.log.read_text().splitlines() if '"routecodex.access"' in line]
    rows = [msgspec.json.decode(line) for line in lines]
    answered = [row for row in rows if row.get("target")]
    assert answered
    assert {row["session"] for row in answered} == {"my work"}


@pytest.mark.parametrize("name", CASES)
async def test_the_exit_code_of_a_failure_is_the_agents(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    wrong = ("--no-such-flag-of-this-agent",)
    async with open_scene(tmp_path, "chat") as scene:
        env = launch_environment(scene, case)
        direct = await run([*command(name), *wrong], env=env, cwd=scene.work)
        ended = await launch_with(scene, case, wrong)
        assert ended.code == direct.code
        assert direct.out.strip() in ended.out


async def test_codex_has_its_own_prompt_and_tools_without_a_warning(tmp_path: Path) -> None:
    async with open_scene(tmp_path, "chat") as scene:
        ended = await launch(scene, CASES["codex"], "hello")
        assert "not found" not in ended.err
        body = scene.requests("main")[0].json
    names = {tool["function"]["name"] for tool in body["tools"]}
    assert {"apply_patch", "exec_command"} <= names
    assert "You are Codex" in msgspec.json.encode(body["messages"]).decode()


async def test_claude_code_has_its_whole_prompt_and_all_tools_with_any_model(tmp_path: Path) -> None:
    async with open_scene(tmp_path, "messages") as scene:
        ended = await launch(scene, CASES["claude"], "hello", "--model", "up.main")
        assert ended.code == 0, ended.err
        body = scene.requests("main")[0].json
    assert sum(len(block["text"]) for block in body["system"]) > 20_000
    assert "x-anthropic-billing-header" not in body["system"][0]["text"]
    assert "ToolSearch" not in {tool["name"] for tool in body["tools"]}


async def test_a_later_turn_of_another_run_has_the_session_and_its_instructions(tmp_path: Path) -> None:
    case = CASES["qwen"]
    async with open_model(tmp_path, "chat") as scene:
        await launch(scene, case, "<**!up.sub**> hello", "--session", "my-work")
        first = set(scene.models())
        scene.upstream.requests.clear()
        await launch(scene, case, "hello again", "--session", "my-work")
        assert (first, set(scene.models())) == ({"sub"}, {"sub"})
