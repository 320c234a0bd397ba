"""A server tool of somebody else's, and the package that names it to the gateway."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.parts import ToolCall
from routecodex.canon.request import Request, Tool
from routecodex.server_tools.framework import ServerTool, TurnContext

SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}


class Where(Struct):
    """What the tool is asked for."""

    at: str


class Peek(ServerTool):
    """Looks at things; it fails at one of them."""

    name = "peek"

    async def inject(self, situation: TurnContext, request: Request) -> Request:
        situation.names.add(self.name)
        return replace(request, tools=(*request.tools, Tool(self.name, parameters=SCHEMA)))

    def answers(self, situation: TurnContext, name: str) -> bool:
        return name == self.name

    async def call(self, situation: TurnContext, call: ToolCall) -> str:
        where = msgspec.json.decode(call.arguments, type=Where).at
        if where == "the abyss":
            raise RuntimeError("it looked back")
        return f"saw {where}"


def install(folder: Path) -> Path:
    """Lays out a package that has nothing but an entry point; the folder to find it in."""
    about = folder / "peeking-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: peeking\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[routecodex.server_tools]\npeek = tests.gateway.store_reader:Peek\n"
    )
    return folder
