"""The real Codex: sub-agents and compaction beside the conversation of the person."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.agents.codex import READ, answers_of, codex
from tests.clients.agents.scene import FOLLOWUP, NOTHING_ELSE, TWICE, open_scene, records, rule
from tests.kit.answers import Call, Counts

pytestmark = pytest.mark.agents

WAIT = Call("collaboration__wait_agent", {"timeout_ms": 20_000})
LARGE = Counts(input=90_000, output=10)


def spawn(message: str) -> Call:
    """Return the call that starts a sub-agent."""
    return Call("collaboration__spawn_agent", {"task_name": "t1", "message": message, "fork_turns": "none"})


async def test_a_sub_agent_uses_up_no_round_and_has_a_route(tmp_path: Path) -> None:
    task = 'look into it <**stopMessage:"written by a model",9**>'
    rules = (
        rule("look into it", "Nothing there."),
        rule("Nothing there.", "It found nothing."),
        rule("task_name", WAIT),
        rule("DELEGATE", spawn(task)),
    )
    async with open_scene(tmp_path, "chat", *rules) as scene:
        ended = await codex(scene, f"{TWICE} DELEGATE it")
        (answer,) = answers_of(ended)
        assert answer.split("\n\n") == ["It found nothing.", NOTHING_ELSE, NOTHING_ELSE]
        assert sorted(scene.models()) == ["main"] * 5 + ["sub"]
        assert [FOLLOWUP in new for new in scene.news("main")] == [False, False, False, True, True]
        assert b"<**" not in scene.requests("sub")[0].body
    lines = records(scene)
    assert sorted((line["role"], "agent" in line) for line in lines) == [
        *[("main", False)] * 3,
        ("subagent", True),
    ]
    assert len({line["session"] for line in lines}) == 1


async def test_a_compaction_is_not_continued_and_applies_no_tag_again(tmp_path: Path) -> None:
    rules = (
        rule("CONTEXT CHECKPOINT COMPACTION", 'Told to use <**stopMessage:"written by a model",9**>.'),
        rule("Another language model", "Went on."),
        rule("READ it", READ, counts=LARGE),
    )
    async with open_scene(tmp_path, "chat", *rules) as scene:
        prompt = f'<**stopMessage:"{FOLLOWUP}",1**> READ it'
        ended = await codex(scene, prompt, model_auto_compact_token_limit="50000")
        assert answers_of(ended) == [f"Went on.\n\n{NOTHING_ELSE}"]
        assert scene.models() == ["main", "summary", "main", "main"]
        assert [FOLLOWUP in new for new in scene.news()] == [False, False, False, True]
        assert b"<**" not in b"".join(request.body for request in scene.requests())
    assert [line["role"] for line in records(scene)] == ["main", "compaction", "main"]


async def test_a_review_is_a_sub_agent(tmp_path: Path) -> None:
    async with open_scene(tmp_path, "chat") as scene:
        ended = await codex(scene, f"{TWICE} look at a.txt", "review")
        assert answers_of(ended) == [NOTHING_ELSE]
        assert scene.models() == ["sub"]
    assert [line["role"] for line in records(scene)] == ["subagent"]
