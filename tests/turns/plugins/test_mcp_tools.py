"""The tools of a real MCP server, a process of its own; needs the extra `mcp`."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest

from routecodex.turns import Call, Conversation, McpFailed, McpTools, Message, ScriptedSender, ToolPlugin
from tests.turns.plugins.pairs import results

# It keeps the sys.stderr of its first import for the servers it starts: not that of a test that replaces it.
importlib.import_module("mcp")

SERVER = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]


def start_conversation(plugin: ToolPlugin, *answers: Any) -> tuple[Conversation, ScriptedSender]:
    sender = ScriptedSender(answers)
    return Conversation(model="m", sender=sender, plugins=[plugin]), sender


async def test_the_tools_of_a_server_are_offered_and_run() -> None:
    async with McpTools(SERVER) as server:
        conversation, sender = start_conversation(
            ToolPlugin(get_tools=server.get_tools),
            [Call("add", {"a": 1, "b": 2}), Call("dotted_name"), Call("fail"), Call("add", {"a": "x"})],
            "done",
        )
        assert await conversation.send("go") == Message("assistant", "done")
    offered = {schema["function"]["name"]: schema["function"] for schema in sender.bodies[0]["tools"]}
    assert list(offered) == ["add", "dotted_name", "fail", "picture", "variable", "wait", "die"]
    assert offered["add"]["description"] == "Adds two numbers."
    assert offered["add"]["parameters"]["required"] == ["a", "b"]
    (three, dots, failed, refused) = results(conversation)
    assert (three, dots) == (("done", "3"), ("done", "dots"))
    assert failed[0] == refused[0] == "failed"
    assert "out of order" in failed[1]
    assert "validation error" in refused[1]


async def test_pictures_become_content_parts() -> None:
    async with McpTools(SERVER) as server:
        conversation, _ = start_conversation(ToolPlugin(await server.get_tools()), [Call("picture")], "done")
        await conversation.send("go")
    assert results(conversation) == [
        (
            "done",
            [
                {"type": "text", "text": "a dot"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
            ],
        )
    ]


async def test_two_servers_are_kept_apart_by_their_prefix_and_get_their_own_environment() -> None:
    async with (
        McpTools(SERVER, prefix="one", env={"WHICH": "first"}) as one,
        McpTools(SERVER, prefix="two", env={"WHICH": "second"}) as two,
    ):

        async def both(_: object) -> list[Any]:
            return [*await one.get_tools(), *await two.get_tools()]

        calls = [Call("one_variable", {"name": "WHICH"}), Call("two_variable", {"name": "WHICH"})]
        conversation, _ = start_conversation(ToolPlugin(get_tools=both), calls, "done")
        await conversation.send("go")
    assert results(conversation) == [("done", "first"), ("done", "second")]


async def test_a_tool_that_takes_too_long_is_given_up_and_the_server_goes_on() -> None:
    async with McpTools(SERVER, timeout=0.1) as server:
        conversation, _ = start_conversation(ToolPlugin(get_tools=server.get_tools), [Call("wait")], "done")
        await conversation.send("go")
        (tool,) = [tool for tool in await server.get_tools() if tool.name == "add"]
        assert tool.run is not None
        assert await tool.run({"a": 2, "b": 2}) == "4"
    assert results(conversation) == [("timed out", "The tool 'wait' timed out after 0.1 s.")]


async def test_a_server_that_dies_fails_the_tool_and_not_the_turn() -> None:
    async with McpTools(SERVER) as server:
        tools = await server.get_tools()
        conversation, _ = start_conversation(
            ToolPlugin(tools), [Call("die")], [Call("add", {"a": 1, "b": 1})], "done"
        )
        assert await conversation.send("go") == Message("assistant", "done")
    assert [state for state, _ in results(conversation)] == ["failed", "failed"]


async def test_a_server_that_died_ends_the_turn_that_asks_for_its_tools() -> None:
    async with McpTools(SERVER) as server:
        conversation, _ = start_conversation(ToolPlugin(get_tools=server.get_tools), [Call("die")], "never")
        with pytest.raises(McpFailed, match="the MCP server did not answer: Connection closed"):
            await conversation.send("go")
    assert [state for state, _ in results(conversation)] == ["failed"]


async def test_a_server_is_used_while_it_is_open_and_may_be_opened_again() -> None:
    server = McpTools(SERVER)
    names = []
    for _ in range(2):
        with pytest.raises(McpFailed, match="not connected; use its tools within `async with`"):
            await server.get_tools()
        async with server:
            names.append(sorted(tool.name for tool in await server.get_tools()))
    assert names[0] == names[1] != []


def test_an_empty_command_is_refused() -> None:
    with pytest.raises(ValueError, match="the command of an MCP server is empty"):
        McpTools([])


async def test_closing_ends_the_server_even_from_another_task() -> None:
    before = {process.pid for process in psutil.Process().children()}
    server = await McpTools(SERVER).__aenter__()
    started = [process for process in psutil.Process().children() if process.pid not in before]
    assert len(started) == 1
    await asyncio.create_task(server.__aexit__(None, None, None))
    assert not started[0].is_running()


async def test_a_server_that_cannot_be_started_is_named() -> None:
    with pytest.raises(McpFailed, match="could not be reached"):
        async with McpTools(["/nowhere/to/be/found"]):
            pass


def test_an_environment_is_for_servers_that_are_started() -> None:
    with pytest.raises(ValueError, match="env applies only to a server that is started"):
        McpTools("http://127.0.0.1:9/mcp", env={"A": "b"})


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ImportError, match=r"pip install 'routecodex\[mcp\]'"):
        McpTools(SERVER)
