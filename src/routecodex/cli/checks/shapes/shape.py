"""The values of request shapes, and the texts that all of them use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from routecodex.canon.request import ProtocolName

ShapeName = Literal["text", "tool_call", "tool_result", "title", "compaction", "count_tokens"]

FILE = "notes.txt"
FILE_CONTENT = "The harvest festival begins on Friday."
TEXT_PROMPT = "Reply with one short sentence that says hello."
READ_PROMPT = f'Call the tool {{tool}} for the file "{FILE}" now, before you write anything else.'


class AssistantTurn(Struct, frozen=True):
    """A turn in which the model called a tool: the items to send back, as the agent keeps them."""

    items: list[dict[str, Any]]
    call_id: str
    tool: str


class ShapeInput(Struct, frozen=True, kw_only=True):
    """Values that fill a shape; `turn` is the answer to `tool_call`, `summary` that to `compaction`."""

    model: str
    key: str
    session: str
    turn_id: str
    turn: AssistantTurn | None = None
    summary: str = ""


class RequestShape(Struct, frozen=True, kw_only=True):
    """One request as the agent sends it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    stream: bool = True


ShapeBuilder: TypeAlias = Callable[[ShapeInput], RequestShape]


class AgentShapes(Struct, frozen=True, kw_only=True):
    """The requests of an agent.

    `tool` is the tool that `tool_call` asks for, and `argument` the argument that it must have; `recorded`
    makes the turn to go on with when the model called nothing. `after` is sent after a shape, to see that the
    conversation goes on. `length_fails`: the agent gives up a turn that a length limit ends.
    """

    protocol: ProtocolName
    shapes: Mapping[ShapeName, ShapeBuilder]
    tool: str = ""
    argument: str = ""
    recorded: Callable[[], AssistantTurn] | None = None
    after: Mapping[ShapeName, ShapeBuilder] = {}
    length_fails: bool = False
