"""A server tool of another package, and the entry point that makes the gateway load it."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.parts import ToolCall
from routecodex.canon.request import Request, Tool
from routecodex.server_tools.framework import ServerTool, TurnContext

SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}


class PeekArguments(Struct):
    """Arguments of the tool."""

    at: str


class PeekTool(ServerTool):
    """Returns what it saw at a place; it fails at one of them."""

    name = "peek"

    async def inject(self, turn: TurnContext, request: Request) -> Request:
        turn.names.add(self.name)
        return replace(request, tools=(*request.tools, Tool(self.name, parameters=SCHEMA)))

    def answers(self, turn: TurnContext, name: str) -> bool:
        return name == self.name

    async def call(self, turn: TurnContext, call: ToolCall) -> str:
        where = msgspec.json.decode(call.arguments, type=PeekArguments).at
        if where == "the abyss":
            raise RuntimeError("it looked back")
        return f"saw {where}"


PEEK = "peek = tests.gateway.installed_tool:PeekTool"


def install(folder: Path, *points: str) -> Path:
    """Install a package with nothing but entry points; return the folder to put on the path."""
    about = folder / "peeking-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: peeking\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "\n".join(["[routecodex.server_tools]", *(points or (PEEK,)), ""])
    )
    return folder
