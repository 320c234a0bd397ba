"""The real Gemini CLI: a tool loop, its router and its compaction, in a session by path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.clients.agents.gemini_cli import gemini_cli
from tests.clients.agents.scene import NOTHING_ELSE, TWICE, Scene, open_scene, records, rule
from tests.kit.answers import Call

pytestmark = pytest.mark.agents

READ = Call("read_file", {"file_path": "a.txt"})
ROUTER = rule("Complexity Score", '{"complexity_reasoning":"easy","complexity_score":5}', system=True)
SNAPSHOT = rule("<state_snapshot>", "<state_snapshot>Nothing yet.</state_snapshot>", system=True)


def in_session(scene: Scene) -> Scene:
    """Return the scene as the agent sees it; Gemini CLI names no session itself."""
    return replace(scene, url=f"{scene.url}/s/my-work")


async def test_the_router_is_a_utility_request_and_uses_up_no_round(tmp_path: Path) -> None:
    async with open_scene(tmp_path, "gemini", ROUTER) as scene:
        ended = await gemini_cli(in_session(scene), f"{TWICE} hello")
        assert ended.out.strip() == "\n\n".join([NOTHING_ELSE] * 3), ended.err
        assert scene.models() == ["small", "main", "main", "main"]
        assert b"<**" not in b"".join(request.body for request in scene.requests())
    assert [(line["role"], line["session"]) for line in records(scene)] == [
        ("utility", "my-work"),
        ("main", "my-work"),
    ]


async def test_a_compaction_is_not_continued(tmp_path: Path) -> None:
    rules = (SNAPSHOT, rule("sunny", "It says sunny."), rule("READ it", READ))
    async with open_scene(tmp_path, "gemini", *rules) as scene:
        (scene.work / "a.txt").write_text("sunny\n" * 4000)
        named = in_session(scene)
        for prompt, flags in (("READ it", ()), (f"{TWICE} and now?", ("--resume", "latest"))):
            model = ("-m", "gemini-2.5-pro", *flags)
            ended = await gemini_cli(named, prompt, *model, model={"compressionThreshold": 0.001})
        assert ended.out.strip() == "\n\n".join([NOTHING_ELSE] * 3), ended.err
        assert scene.models() == [*["main"] * 2, *["summary"] * 2, *["main"] * 3]


async def test_a_sub_agent_uses_up_no_round_and_has_a_route(tmp_path: Path) -> None:
    call = Call("invoke_agent", {"agent_name": "generalist", "prompt": "look into it"})
    done = Call("complete_task", {"result": {"response": "Nothing there."}})
    rules = (rule("Nothing there.", "It found nothing."), rule("look into it", done), rule("DELEGATE", call))
    async with open_scene(tmp_path, "gemini", *rules) as scene:
        ended = await gemini_cli(in_session(scene), f"{TWICE} DELEGATE it", "-m", "gemini-2.5-pro")
        assert ended.out.strip() == "\n\n".join(["It found nothing.", NOTHING_ELSE, NOTHING_ELSE]), ended.err
        assert scene.models() == ["main", "sub", "main", "main", "main"]
    assert [line["role"] for line in records(scene)] == ["main", "subagent", "main"]
