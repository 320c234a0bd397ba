"""The real opencode: titles, sub-agents and compaction beside the conversation of the person."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.agents.opencode import opencode
from tests.clients.agents.scene import FOLLOWUP, NOTHING_ELSE, TWICE, open_scene, records, rule
from tests.kit.answers import Call, Counts

pytestmark = pytest.mark.agents

TITLE = rule("You are a title generator.", "Greeting", system=True)
READ = Call("read", {"filePath": "a.txt"})


def delegation(prompt: str) -> Call:
    """Return a call of the tool that starts a sub-agent."""
    return Call("task", {"description": "look around", "prompt": prompt, "subagent_type": "general"})


@pytest.mark.parametrize("speaks", ["chat", "messages"])
async def test_a_title_and_a_sub_agent_use_up_no_round(tmp_path: Path, speaks: str) -> None:
    task = 'look into it <**stopMessage:"written by a model",9**>'
    rules = (TITLE, rule("look into it", "Nothing there."), rule("DELEGATE", delegation(task)))
    async with open_scene(tmp_path, "chat", *rules) as scene:
        ended = await opencode(scene, f"{TWICE} DELEGATE it", speaks=speaks)
        assert ended.out.strip() == "\n\n".join([NOTHING_ELSE] * 3), ended.err
        # The title is made beside the first turn.
        assert sorted(scene.models()) == ["main"] * 4 + ["small", "sub"]
        assert [FOLLOWUP in new for new in scene.news("main")] == [False, False, True, True]
        assert b"<**" not in b"".join(request.body for request in scene.requests("small", "sub"))
    lines = records(scene)
    assert sorted((line["role"], "agent" in line) for line in lines) == [
        ("main", False),
        ("main", False),
        ("subagent", True),
        ("utility", False),
    ]
    assert len({line["session"] for line in lines}) == 1


async def test_a_compaction_is_not_continued_and_its_follower_applies_no_tag(tmp_path: Path) -> None:
    rules = (
        TITLE,
        rule("Here is the conversation so far:", "The person wants a file read."),
        rule("Continue if you have next steps", "Went on."),
        rule("READ it", READ, counts=Counts(input=95_000, output=10)),
    )
    async with open_scene(tmp_path, "chat", *rules) as scene:
        ended = await opencode(scene, f'<**stopMessage:"{FOLLOWUP}",1**> READ it', context=100_000)
        assert ended.out.strip().endswith(f"Went on.\n\n{NOTHING_ELSE}"), ended.err
        assert [model for model in scene.models() if model != "small"] == ["main", "summary", "main", "main"]
        assert sum(FOLLOWUP in new for new in scene.news()) == 1
