"""The model pickers of the real Claude Code and Codex: the lists they read, and the names they send back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.clients.agents.claude_code import claude_code
from tests.clients.agents.codex import answers_of, codex
from tests.clients.agents.programs import SECONDS, Ended, command, environment, run
from tests.clients.agents.scene import NOTHING_ELSE, Scene, open_scene, records, rule
from tests.kit.answers import Call

pytestmark = pytest.mark.agents

SETTINGS = '[models]\n"claude-fast" = "up.small"\n"smart" = "up.main"\n'
PATCH = "*** Begin Patch\n*** Add File: new.txt\n+made by a patch\n*** End Patch"


@contextlib.asynccontextmanager
async def in_terminal(argv: list[str], env: dict[str, str], cwd: Path) -> AsyncIterator[None]:
    """Run a program in a terminal; its output is thrown away, so that it does not wait for a reader."""
    terminal, end = os.openpty()
    loop = asyncio.get_running_loop()
    loop.add_reader(terminal, lambda: os.read(terminal, 65536))
    process = await asyncio.create_subprocess_exec(
        *argv, env=env, cwd=cwd, stdin=end, stdout=end, stderr=end, start_new_session=True
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        loop.remove_reader(terminal)
        os.close(end)
        os.close(terminal)


def settle_in(home: Path, work: Path) -> None:
    """Answer the questions that Claude Code asks at its first start: the colours, and whether to trust."""
    home.mkdir()
    trusted = {str(work): {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}}
    answered = {"hasCompletedOnboarding": True, "theme": "dark", "projects": trusted}
    (home / ".claude.json").write_bytes(msgspec.json.encode(answered))


async def cached_models(home: Path) -> list[dict[str, Any]]:
    """Wait for the list that Claude Code keeps of a gateway's models."""
    async with asyncio.timeout(SECONDS):
        while True:
            for file in (home / ".claude").rglob("*gateway*models*.json"):
                with contextlib.suppress(msgspec.DecodeError):
                    models: list[dict[str, Any]] = msgspec.json.decode(file.read_bytes())["models"]
                    return models
            await asyncio.sleep(0.05)


async def test_claude_code_keeps_every_model_of_the_gateway_for_its_picker(tmp_path: Path) -> None:
    async with open_scene(tmp_path, "messages", settings='[models]\n"claude-fast" = "up.small"\n') as scene:
        settle_in(scene.home, scene.work)
        env = environment(
            scene.home,
            ANTHROPIC_BASE_URL=scene.url,
            ANTHROPIC_AUTH_TOKEN="any",
            CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY="1",
        )
        async with in_terminal(command("claude"), env, scene.work):
            models = await cached_models(scene.home)
    assert [model["id"] for model in models] == [
        *("claude-fast", "claude-via-up.main", "claude-via-up.sub"),
        *("claude-via-up.small", "claude-via-up.summary"),
    ]
    assert [model["display_name"] for model in models[1:3]] == ["up.main", "up.sub"]
    assert [row["call"] for row in records(scene) if row.get("call", "").startswith("GET")] == [
        "GET /v1/models"
    ]


async def test_claude_code_works_with_a_model_of_its_picker(tmp_path: Path) -> None:
    async with (
        open_scene(tmp_path, "chat") as scene,
        claude_code(scene, model="claude-via-up.sub") as session,
    ):
        result = await session.say("hello")
    assert result["result"] == NOTHING_ELSE
    assert set(scene.models()) == {"sub"}


def _settings(scene: Scene) -> dict[str, str]:
    """Return settings with which Codex reads the catalog of a gateway: a provider with a login command."""
    provider = (
        f'{{name="RouteCodex",base_url="{scene.url}/v1",wire_api="responses",'
        'auth={command="echo",args=["any"]}}'
    )
    return {"model_provider": '"routecodex"', "model_providers.routecodex": provider}


async def _catalog(scene: Scene) -> Ended:
    flags = [part for name, value in _settings(scene).items() for part in ("-c", f"{name}={value}")]
    argv = [*command("codex"), "debug", "models", *flags]
    return await run(argv, env=environment(scene.home), cwd=scene.work)


async def test_codex_shows_every_model_of_the_gateway(tmp_path: Path) -> None:
    async with open_scene(tmp_path, "chat", settings=SETTINGS) as scene:
        shown = await _catalog(scene)
    assert shown.code == 0, shown
    rows = {row["slug"]: row for row in msgspec.json.decode(shown.out)["models"]}
    ids = ["up.main", "up.sub", "up.small", "up.summary", "claude-fast", "smart"]
    assert [slug for slug in rows if slug in ids] == ids
    assert {rows[name]["visibility"] for name in ids} == {"list"}
    assert all(rows[name]["base_instructions"] for name in ids)


async def test_codex_knows_the_model_and_patches_files_with_the_prompt_of_the_gateway(tmp_path: Path) -> None:
    rules = (rule("Success", "It is written."), rule("write it", Call("apply_patch", {"input": PATCH})))
    async with open_scene(tmp_path, "chat", *rules, settings=SETTINGS) as scene:
        ended = await codex(scene, "write it", model="up.sub", **_settings(scene))
        made = (scene.work / "new.txt").read_text()
        first = scene.requests("sub")[0]
    assert answers_of(ended)[-1] == "It is written."
    assert made == "made by a patch\n"
    assert "metadata" not in ended.err
    assert "Model metadata" not in ended.out
    assert "*** Begin Patch" in str(first.json["messages"][0])
