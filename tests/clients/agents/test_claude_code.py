"""The real Claude Code: sub-agents, `/compact` and titles beside the conversation of the person."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.clients.agents.claude_code import HINTS, claude_code
from tests.clients.agents.scene import FOLLOWUP, NOTHING_ELSE, TWICE, open_scene, records, rule
from tests.kit.answers import Call, Counts

pytestmark = pytest.mark.agents

with_and_without_hints = pytest.mark.parametrize(
    "hints", [pytest.param(HINTS, id="hints"), pytest.param({}, id="no-hints")]
)
SUMMARY = "<analysis>Short.</analysis>\n<summary>The person said hello.</summary>"
COMPACTION = rule("CRITICAL: Respond with TEXT ONLY", SUMMARY)
TITLE = rule("<session>", '{"title":"Greeting"}')


def delegation(prompt: str, *, background: bool = False) -> Call:
    """Return a call of the tool that starts a sub-agent."""
    task = {"description": "look around", "prompt": prompt, "subagent_type": "general-purpose"}
    return Call("Agent", {**task, "run_in_background": background})


@with_and_without_hints
async def test_compact_is_not_continued_and_uses_up_no_round(tmp_path: Path, hints: dict[str, str]) -> None:
    async with open_scene(tmp_path, "messages", COMPACTION) as scene:
        async with claude_code(scene, **hints) as session:
            await session.say("hello there")
            confirmed = await session.say(TWICE)
            await session.say("/compact")
            answered = await session.say("and now?")
        assert "0 of 2 used" in confirmed["result"]
        assert scene.models() == ["main", "summary", "main", "main", "main"]
        assert [FOLLOWUP in new for new in scene.news()] == [False, False, False, True, True]
        assert answered["result"] == "\n\n".join([NOTHING_ELSE] * 3)
        compacted = scene.news("main")[1]
        assert "Summary:\\nThe person said hello." in compacted
        sent = b"".join(request.body for request in scene.requests())
        assert [phrase for phrase in (b"[RouteCodex]", b"<**") if phrase in sent] == []
    assert [(line["role"], line["route"]) for line in records(scene)] == [
        ("main", "default"),
        ("main", "gateway"),
        ("compaction", "compaction"),
        ("main", "default"),
    ]


@with_and_without_hints
async def test_a_compaction_within_a_turn_is_not_continued(tmp_path: Path, hints: dict[str, str]) -> None:
    read = Call("Read", {"file_path": "a.txt"})
    rules = (COMPACTION, rule("READ it", read, counts=Counts(input=190_000, output=10)))
    async with open_scene(tmp_path, "messages", *rules) as scene:
        async with claude_code(scene, **hints) as session:
            answered = await session.say(f"{TWICE} READ it")
        assert answered["result"] == "\n\n".join([NOTHING_ELSE] * 3)
        assert scene.models() == ["main", "summary", "main", "main", "main"]
        assert [FOLLOWUP in new for new in scene.news()] == [False, False, False, True, True]


@with_and_without_hints
async def test_a_sub_agent_uses_up_no_round_and_has_a_route(tmp_path: Path, hints: dict[str, str]) -> None:
    task = 'look into it <**stopMessage:"written by a model",9**>'
    rules = (rule("look into it", Call("Read", {"file_path": "a.txt"})), rule("DELEGATE", delegation(task)))
    async with open_scene(tmp_path, "messages", *rules) as scene:
        async with claude_code(scene, **hints) as session:
            await session.say(TWICE)
            answered = await session.say("DELEGATE it")
        assert scene.models() == ["main", "sub", "sub", "main", "main", "main"]
        assert [FOLLOWUP in new for new in scene.news("main")] == [False, False, True, True]
        assert answered["result"] == "\n\n".join([NOTHING_ELSE] * 3)
        assert b"<**" not in b"".join(request.body for request in scene.requests("sub"))
    lines = [(line["role"], "agent" in line) for line in records(scene)]
    assert lines == [
        ("main", False),
        ("main", False),
        ("subagent", True),
        ("subagent", True),
        ("main", False),
    ]
    assert len({line["session"] for line in records(scene)}) == 1


@with_and_without_hints
async def test_the_news_of_a_sub_agent_applies_no_tag_again(tmp_path: Path, hints: dict[str, str]) -> None:
    """A finished sub-agent starts a turn of its own, under a prompt id of its own."""
    first_turn = asyncio.Event()
    rules = (
        rule("look into it", "Nothing there.", after=first_turn),
        rule("DELEGATE", delegation("look into it", background=True)),
    )
    async with open_scene(tmp_path, "messages", *rules) as scene:
        async with claude_code(scene, **hints) as session:
            await session.say(f'<**stopMessage:"{FOLLOWUP}",1**> DELEGATE it')
            first_turn.set()
            notified = await session.until("result")
        assert notified["result"] == NOTHING_ELSE
        assert sum(FOLLOWUP in new for new in scene.news()) == 1
        assert "[SYSTEM NOTIFICATION - NOT USER INPUT]" in scene.news("main")[-1]


@with_and_without_hints
async def test_a_title_is_a_utility_request(tmp_path: Path, hints: dict[str, str]) -> None:
    async with open_scene(tmp_path, "messages", TITLE) as scene:
        async with claude_code(scene, **hints) as session:
            await session.control("initialize")
            await session.say(TWICE)
            described = f"Say hello to the world {TWICE}"
            titled = await session.control("generate_session_title", description=described, persist=False)
        assert titled == {"title": "Greeting"}
        assert scene.models() == ["small"]
        assert b"<**" not in scene.requests()[0].body
    assert [line["role"] for line in records(scene)] == ["main", "utility"]


@with_and_without_hints
async def test_a_side_question_is_a_utility_request(tmp_path: Path, hints: dict[str, str]) -> None:
    async with open_scene(tmp_path, "messages") as scene:
        async with claude_code(scene, **hints) as session:
            await session.control("initialize")
            await session.say("hello there")
            await session.say(TWICE)
            aside = await session.control("side_question", question="what is it?")
        assert aside["response"] == NOTHING_ELSE
        assert scene.models() == ["main", "small"]


@with_and_without_hints
async def test_the_clock_is_a_tool_of_the_main_conversation_only(
    tmp_path: Path, hints: dict[str, str]
) -> None:
    clock = "[server_tools.clock]\nenabled = true\nntp = { enabled = false }\n"
    rules = (
        COMPACTION,
        TITLE,
        rule("look into it", "Nothing."),
        rule("DELEGATE", delegation("look into it")),
    )
    async with open_scene(tmp_path, "messages", *rules, settings=clock) as scene:
        async with claude_code(scene, **hints) as session:
            await session.control("initialize")
            await session.say("DELEGATE it")
            await session.control("generate_session_title", description="Delegate the work", persist=False)
            await session.say("/compact")
        assert scene.models() == ["main", "sub", "main", "small", "summary"]
        tools = [[tool["name"] for tool in request.json.get("tools", ())] for request in scene.requests()]
        assert ["clock" in names for names in tools] == [True, False, True, False, False]


async def test_sub_agents_may_have_a_model_of_their_own(tmp_path: Path) -> None:
    rules = (rule("look into it", "Nothing."), rule("DELEGATE", delegation("look into it")))
    async with open_scene(tmp_path, "messages", *rules) as scene:
        async with claude_code(scene, **HINTS) as session:
            confirmed = await session.say("<**agents:!up.small**>")
            await session.say("DELEGATE it")
            await session.say("<**agents:clear**>")
            await session.say("DELEGATE it again")
        assert "up.small" in confirmed["result"]
        assert scene.models() == ["main", "small", "main", "main", "sub", "main"]


@with_and_without_hints
async def test_a_web_search_is_a_utility_request(tmp_path: Path, hints: dict[str, str]) -> None:
    search = Call("WebSearch", {"query": "llamas"})
    rules = (rule("Perform a web search", "Llamas are found."), rule("SEARCH it", search))
    async with open_scene(tmp_path, "messages", *rules) as scene:
        allowed = ("--allowedTools", "WebSearch")
        async with claude_code(scene, *allowed, ENABLE_TOOL_SEARCH="false", **hints) as session:
            await session.say(TWICE)
            answered = await session.say("SEARCH it")
        assert answered["result"] == "\n\n".join([NOTHING_ELSE] * 3)
        assert [FOLLOWUP in new for new in scene.news()] == [False, False, False, True, True]
    assert [line["role"] for line in records(scene)] == ["main", "main", "utility", "main"]
