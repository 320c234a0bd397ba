"""An MCP server over standard input and output, with a few tools."""

from __future__ import annotations

import asyncio
import base64
import importlib
import os
from typing import Any

exceptions = importlib.import_module("mcp.server.mcpserver.exceptions")
mcpserver = importlib.import_module("mcp.server.mcpserver")


def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


def dotted() -> str:
    return "dots"


def fail() -> str:
    raise exceptions.ToolError("out of order")


def picture() -> list[Any]:
    return ["a dot", mcpserver.Image(data=base64.b64decode("iVBORw0KGgo="), format="png")]


def variable(name: str) -> str:
    return os.environ.get(name, "unset")


async def wait() -> str:
    await asyncio.Event().wait()
    return "never"


def die() -> str:
    os._exit(3)


if __name__ == "__main__":
    server = mcpserver.MCPServer("test", log_level="CRITICAL")
    names: dict[Any, str] = {dotted: "dotted.name"}
    for function in (add, dotted, fail, picture, variable, wait, die):
        server.add_tool(function, name=names.get(function), structured_output=False)
    server.run("stdio")
