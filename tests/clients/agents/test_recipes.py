"""What docs/clients.md tells people to set, tried with the real agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.clients.agents.claude_code import Session, claude_code
from tests.clients.agents.codex import answers_of, codex
from tests.clients.agents.programs import command, environment, run
from tests.clients.agents.recipes import blocks, variables
from tests.clients.agents.scene import NOTHING_ELSE, Scene, open_scene, records, rule
from tests.kit.answers import Call

pytestmark = pytest.mark.agents

ALIASES = '[models]\n"claude-*" = "up.main"\n'
ELSEWHERE = "http://127.0.0.1:9"
PATCH = "*** Begin Patch\n*** Add File: b.txt\n+hello\n*** End Patch"


async def prompt_and_window(session: Session, scene: Scene) -> tuple[int, int]:
    """Return the kilobytes of the system prompt, and the context that Claude Code assumes."""
    await session.control("initialize")
    assert (await session.say("hello"))["result"] == NOTHING_ELSE
    usage = await session.control("get_context_usage")
    system = scene.requests("main")[0].json["system"]
    return sum(len(block["text"]) for block in system) // 1000, usage["rawMaxTokens"]


async def test_claude_code_with_its_own_names_has_its_whole_prompt(tmp_path: Path) -> None:
    async with open_scene(tmp_path, "messages", settings=ALIASES) as scene:
        env = variables(blocks("Claude Code", scene)[0])
        assert env["ANTHROPIC_BASE_URL"] == scene.url
        async with claude_code(scene, model="claude-sonnet-4-6", **env) as session:
            size, window = await prompt_and_window(session, scene)
    assert (size > 20, window) == (True, 200_000)


async def test_claude_code_with_unknown_names_needs_two_variables(tmp_path: Path) -> None:
    async with open_scene(tmp_path, "messages", settings=ALIASES) as scene:
        first, named = blocks("Claude Code", scene)[:2]
        async with claude_code(scene, model="claude-glm", **variables(first)) as session:
            lean = await prompt_and_window(session, scene)
        scene.upstream.requests.clear()
        env = variables(first, named)
        async with claude_code(scene, model=env["ANTHROPIC_MODEL"], **env) as session:
            size, window = await prompt_and_window(session, scene)
    assert lean == (5, 1_000_000)
    assert (size > 20, window) == (True, 200_000)


async def test_the_settings_flag_of_claude_code_beats_its_settings_file(tmp_path: Path) -> None:
    async with open_scene(tmp_path, "messages") as scene:
        folder = scene.home / ".claude"
        folder.mkdir(parents=True)
        (folder / "settings.json").write_bytes(settings(ELSEWHERE))
        async with claude_code(scene, "--settings", settings(scene.url).decode()) as session:
            assert (await session.say("hello"))["result"] == NOTHING_ELSE


def settings(url: str) -> bytes:
    return msgspec.json.encode({"env": {"ANTHROPIC_BASE_URL": url}})


def catalog(models: list[dict[str, Any]]) -> bytes:
    """Return the catalog that the page's jq command makes of Codex's own."""
    row = next(row for row in models if row["slug"] == "gpt-5.5")
    changes = {"slug": "up.main", "display_name": "GLM 4.7", "supports_search_tool": False}
    window = {"context_window": 200_000, "max_context_window": 200_000}
    return msgspec.json.encode({"models": [{**row, **changes, **window}]})


async def test_a_catalog_row_gives_codex_its_tools_without_a_warning(tmp_path: Path) -> None:
    rules = (rule("Success", "Patched."), rule("PATCH it", Call("apply_patch", {"input": PATCH})))
    async with open_scene(tmp_path, "chat", *rules) as scene:
        env = environment(scene.home, ROUTECODEX_KEY="any")
        listed = await run([*command("codex"), "debug", "models"], env=env, cwd=scene.work)
        path = scene.home / "models.json"
        path.write_bytes(catalog(msgspec.json.decode(listed.out)["models"]))
        config = blocks("Codex CLI", scene)[0].replace("/home/me/.codex/routecodex-models.json", str(path))
        (scene.home / ".codex").mkdir(exist_ok=True)
        (scene.home / ".codex" / "config.toml").write_text(config)
        flags = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json")
        ended = await run([*command("codex"), "exec", *flags, "PATCH it"], env=env, cwd=scene.work)
        assert answers_of(ended) == ["Patched."]
        assert "not found" not in ended.out
        assert (scene.work / "b.txt").read_text() == "hello\n"


async def test_codex_warns_of_a_name_without_a_row_and_has_no_patch_tool(tmp_path: Path) -> None:
    async with open_scene(tmp_path, "chat") as scene:
        ended = await codex(scene, "hello", model="up.main")
        assert "Model metadata for `up.main` not found" in ended.out
        names = {tool["function"]["name"] for tool in scene.requests()[0].json["tools"]}
        assert "apply_patch" not in names
        assert "exec_command" in names


async def test_gemini_cli_needs_its_sign_in_method(tmp_path: Path) -> None:
    async with open_scene(tmp_path, "gemini") as scene:
        env = environment(scene.home, **variables(blocks("Gemini CLI", scene)[0]))
        argv = [*command("gemini"), "-m", "up.main", "--skip-trust", "-p", "hello"]
        refused = await run(argv, env=env, cwd=scene.work)
        folder = scene.home / ".gemini"
        folder.mkdir(exist_ok=True)
        chosen = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
        (folder / "settings.json").write_bytes(msgspec.json.encode(chosen))
        ended = await run(argv, env=env, cwd=scene.work)
    assert refused.code == 41
    assert (ended.code, ended.out.strip()) == (0, NOTHING_ELSE)
    assert [line["session"] for line in records(scene)] == ["my-work"]


async def test_opencode_with_its_file(tmp_path: Path) -> None:
    async with open_scene(tmp_path, "chat") as scene:
        (scene.work / "opencode.json").write_text(blocks("opencode", scene)[0])
        quiet = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
        env = environment(scene.home, **quiet)
        ended = await run([*command("opencode"), "run", "hello"], env=env, cwd=scene.work)
        assert ended.out.strip() == NOTHING_ELSE, ended.err
        assert sorted(scene.models()) == ["main", "small"]
