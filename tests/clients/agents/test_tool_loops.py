"""Each agent asks a model for a tool call, runs it and sends the result, whatever the provider speaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.agents.claude_code import claude_code
from tests.clients.agents.codex import READ, answers_of, codex
from tests.clients.agents.gemini_cli import gemini_cli
from tests.clients.agents.opencode import opencode
from tests.clients.agents.scene import NOTHING_ELSE, Rule, open_scene, rule
from tests.kit.answers import Call, Piece

pytestmark = pytest.mark.agents

SAYS = "It says sunny."


def upstreams(first: str, *others: str) -> pytest.MarkDecorator:
    """Run a test with each upstream, and the first of them in `make test` too."""
    return pytest.mark.parametrize("upstream", [pytest.param(first, marks=pytest.mark.short), *others])


def rules(call: Piece) -> tuple[Rule, ...]:
    return (
        rule("You are a title generator.", "Weather", system=True),
        rule("sunny", SAYS),
        rule("READ it", call),
    )


@upstreams("chat", "messages", "gemini")
async def test_claude_code(tmp_path: Path, upstream: str) -> None:
    async with open_scene(tmp_path, upstream, *rules(Call("Read", {"file_path": "a.txt"}))) as scene:
        async with claude_code(scene) as session:
            assert (await session.say("READ it, please"))["result"] == SAYS
        assert scene.models() == ["main", "main"]


@upstreams("chat", "messages", "gemini")
async def test_codex_with_tools_in_an_item(tmp_path: Path, upstream: str) -> None:
    async with open_scene(tmp_path, upstream, *rules(READ)) as scene:
        ended = await codex(scene, "READ it")
        assert answers_of(ended) == [SAYS]
        assert scene.models() == ["main", "main"]


@pytest.mark.parametrize("upstream", ["chat", "messages", "gemini"])
async def test_codex_searches_for_tools(tmp_path: Path, upstream: str) -> None:
    search = rule("SEARCH it", Call("tool_search", {"query": "agents"}))
    async with open_scene(tmp_path, upstream, search) as scene:
        ended = await codex(scene, "SEARCH it", model="gpt-5.5")
        assert answers_of(ended) == [NOTHING_ELSE]
        found = [b'"multi_agent_v1__spawn_agent"' in request.body for request in scene.requests()]
        assert found == [False, True]


async def test_codex_with_a_responses_provider_that_knows_functions_only(tmp_path: Path) -> None:
    async with open_scene(tmp_path, "responses", *rules(READ), knows_functions_only=True) as scene:
        ended = await codex(scene, "READ it")
        assert answers_of(ended) == [SAYS]
        refused = [b"additional_tools" in request.body for request in scene.requests()]
        assert refused == [True, False, False]
        tools = scene.requests()[1].json["tools"]
        assert {tool["type"] for tool in tools} == {"function"}


@upstreams("chat", "gemini")
async def test_gemini_cli(tmp_path: Path, upstream: str) -> None:
    async with open_scene(tmp_path, upstream, *rules(Call("read_file", {"file_path": "a.txt"}))) as scene:
        ended = await gemini_cli(scene, "READ it", "-m", "up.main")
        assert (ended.code, ended.out.strip()) == (0, SAYS), ended.err
        assert scene.models() == ["main", "main"]


@pytest.mark.parametrize(
    ("upstream", "speaks"),
    [
        pytest.param("chat", "chat", marks=pytest.mark.short),
        ("gemini", "messages"),
        ("messages", "responses"),
    ],
)
async def test_opencode(tmp_path: Path, upstream: str, speaks: str) -> None:
    async with open_scene(tmp_path, upstream, *rules(Call("read", {"filePath": "a.txt"}))) as scene:
        ended = await opencode(scene, "READ it", speaks=speaks)
        assert (ended.code, ended.out.strip()) == (0, SAYS), ended.err
