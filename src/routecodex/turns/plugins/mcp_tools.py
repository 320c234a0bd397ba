"""`McpTools`: the tools of an MCP server, through the official `mcp` package (`pip install routecodex[mcp]`).

    async with McpTools(["uvx", "mcp-server-time"]) as clock:
        conversation = Conversation(url, model=model, plugins=[ToolPlugin(get_tools=clock.get_tools)])

A server is a command, which is started and spoken to over its standard input and output, the URL of one that
listens, or anything else a client of that package takes.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from routecodex.turns.errors import TurnError
from routecodex.turns.plugins.function_tools import Tool

MOST_PAGES = 100
LONGEST_NAME = 64
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


class McpFailed(TurnError):
    """An MCP server could not be reached, or one of its tools says that it failed."""


class McpTools:
    """A connection to one MCP server, open within `async with`, and its tools.

    With a `prefix` the tools are named `<prefix>_<name>`, so that those of several servers do not collide.
    `options` go to the package's client: time limits, callbacks.
    """

    def __init__(
        self,
        server: Any,
        *,
        prefix: str = "",
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        self._new_client = _client(server, env, options)
        self._client: Any = None
        self._prefix = prefix
        self._timeout = timeout
        self._keeper: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    async def __aenter__(self) -> McpTools:
        opened = asyncio.get_running_loop().create_future()
        self._closing.clear()
        self._keeper = asyncio.create_task(self._keep(self._new_client(), opened))
        try:
            await asyncio.wait({opened, self._keeper}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
            raise
        if not opened.done():
            await self._keeper
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._keeper is not None:
            self._closing.set()
            await self._keeper

    async def _keep(self, client: Any, opened: asyncio.Future[None]) -> None:
        """Opens and closes the connection in one task, as the package wants it, whoever closes us."""
        try:
            async with client:
                self._client = client
                opened.set_result(None)
                await self._closing.wait()
        except Exception as exc:
            if opened.done():
                raise
            raise McpFailed(f"the MCP server could not be reached: {_innermost(exc)}") from exc
        finally:
            self._client = None

    async def get_tools(self, _: object = None) -> list[Tool]:
        """The tools the server has now; fit for the `get_tools` of a `ToolPlugin`."""
        tools: dict[str, Tool] = {}
        cursor: str | None = None
        for _page in range(MOST_PAGES):
            page = await self._ask("list_tools", cursor=cursor)
            for offered in page.tools:
                tool = self._tool(offered, tools)
                tools[tool.name] = tool
            cursor = page.next_cursor
            if not cursor:
                break
        return list(tools.values())

    def _tool(self, offered: Any, taken: Mapping[str, Tool]) -> Tool:
        function = {
            "name": _model_name(f"{self._prefix}_{offered.name}" if self._prefix else offered.name, taken),
            "description": offered.description or offered.title or "",
            "parameters": offered.input_schema,
        }
        run = partial(self._call, offered.name)
        return Tool({"type": "function", "function": function}, run=run, timeout=self._timeout)

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        result = await self._ask("call_tool", name, arguments)
        content = _content(result)
        if result.is_error:
            raise McpFailed(content if isinstance(content, str) else str(content))
        return content

    async def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if self._client is None:
            raise McpFailed("the MCP server is not connected; use its tools within `async with`")
        try:
            return await getattr(self._client, method)(*args, **kwargs)
        except Exception as exc:
            raise McpFailed(f"the MCP server gave no answer: {_innermost(exc)}") from exc


def _client(server: Any, env: Mapping[str, str] | None, options: dict[str, Any]) -> Callable[[], Any]:
    """What opens a connection; the package's clients are good for one only."""
    try:
        mcp = importlib.import_module("mcp")
    except ModuleNotFoundError as exc:
        raise ImportError("MCP tools need the package mcp: pip install 'routecodex[mcp]'") from exc
    if isinstance(server, Sequence) and not isinstance(server, str):
        if not server:
            raise ValueError("the command of an MCP server is empty")
        command, *args = map(str, server)
        server = mcp.StdioServerParameters(command=command, args=args, env=dict(env) if env else None)
    elif env:
        raise ValueError("env is for a server that is started by its command")
    return partial(mcp.Client, server, **options)


def _model_name(name: str, taken: Mapping[str, Tool]) -> str:
    """A name models may use; servers have more freedom."""
    plain = _NOT_IN_NAMES.sub("_", name)[:LONGEST_NAME]
    found, number = plain, 2
    while found in taken:
        found = f"{plain[: LONGEST_NAME - len(str(number)) - 1]}_{number}"
        number += 1
    return found


def _content(result: Any) -> Any:
    """The result as content of a tool message: one text, or parts when there is more than text."""
    parts = [_part(block) for block in result.content]
    if not parts:
        return result.structured_content
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(block: Any) -> dict[str, Any]:
    match block.type:
        case "text":
            return {"type": "text", "text": block.text}
        case "image":
            return {"type": "image_url", "image_url": {"url": f"data:{block.mime_type};base64,{block.data}"}}
        case "resource" if getattr(block.resource, "text", None) is not None:
            return {"type": "text", "text": block.resource.text}
        case _:
            # Audio, links and binary resources: no content part of a tool message fits them all.
            return {"type": "text", "text": block.model_dump_json(by_alias=True, exclude_none=True)}


def _innermost(error: BaseException) -> BaseException:
    """The first real error in nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
