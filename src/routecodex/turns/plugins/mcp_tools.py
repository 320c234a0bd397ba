"""`McpTools`: the tools of an MCP server, through the official `mcp` package (`pip install routecodex[mcp]`).

    async with McpTools(["uvx", "mcp-server-time"]) as clock:
        conversation = Conversation(url, model=model, plugins=[ToolPlugin(get_tools=clock.get_tools)])

A server is a command, which is started and reached over its standard input and output, a URL, or any other
value that a client of that package accepts.
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

MAX_PAGES = 100
MAX_NAME_LENGTH = 64
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


class McpFailed(TurnError):
    """An MCP server could not be reached, or one of its tools reported an error."""


class McpTools:
    """A connection to one MCP server, open within `async with`, and its tools.

    With a `prefix` the tools are named `<prefix>_<name>`, so that tools of several servers do not collide.
    `options` are passed to the package's client: time limits, callbacks.
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
        self._connection: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    async def __aenter__(self) -> McpTools:
        opened = asyncio.get_running_loop().create_future()
        self._closing.clear()
        self._connection = asyncio.create_task(self._hold_open(self._new_client(), opened))
        try:
            await asyncio.wait({opened, self._connection}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._connection.cancel()
            await asyncio.wait({self._connection})
            raise
        if not opened.done():
            await self._connection
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._connection is not None:
            self._closing.set()
            await self._connection

    async def _hold_open(self, client: Any, opened: asyncio.Future[None]) -> None:
        """Open and close the connection in one task: the package's cancel scopes must not change tasks."""
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
        """Return the server's current tools; usable as `get_tools` of a `ToolPlugin`."""
        tools: dict[str, Tool] = {}
        cursor: str | None = None
        for _page in range(MAX_PAGES):
            page = await self._request("list_tools", cursor=cursor)
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
        result = await self._request("call_tool", name, arguments)
        content = _content(result)
        if result.is_error:
            raise McpFailed(content if isinstance(content, str) else str(content))
        return content

    async def _request(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if self._client is None:
            raise McpFailed("the MCP server is not connected; use its tools within `async with`")
        try:
            return await getattr(self._client, method)(*args, **kwargs)
        except Exception as exc:
            raise McpFailed(f"the MCP server did not answer: {_innermost(exc)}") from exc


def _client(server: Any, env: Mapping[str, str] | None, options: dict[str, Any]) -> Callable[[], Any]:
    """Return a factory of clients; a client of the package can connect only once."""
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
        raise ValueError("env applies only to a server that is started by a command")
    return partial(mcp.Client, server, **options)


def _model_name(name: str, taken: Mapping[str, Tool]) -> str:
    """Return a unique name that providers accept; MCP allows more characters."""
    sanitized = _NOT_IN_NAMES.sub("_", name)[:MAX_NAME_LENGTH]
    candidate, number = sanitized, 2
    while candidate in taken:
        candidate = f"{sanitized[: MAX_NAME_LENGTH - len(str(number)) - 1]}_{number}"
        number += 1
    return candidate


def _content(result: Any) -> Any:
    """Return the content of a tool message: one text, or parts if the result is not only text."""
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
            # Audio, links and binary resources have no content part in a chat tool message.
            return {"type": "text", "text": block.model_dump_json(by_alias=True, exclude_none=True)}


def _innermost(error: BaseException) -> BaseException:
    """Return the first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
