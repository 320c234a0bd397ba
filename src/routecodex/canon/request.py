"""A request independent of any protocol, and the features of it that routing reads.

Codecs read `RequestFeatures` without decoding the whole request.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from routecodex.canon.parts import Json, Part, Text

NewestRole = Literal["user", "assistant", "tool", "system"]

RoleName = Literal["main", "subagent", "utility", "compaction"]
"""Roles of the requests of one session: several conversations share it."""


class CalledTool(Struct, frozen=True):
    """A tool that the model called; `arguments` is JSON or free text, possibly truncated at about 2 KB."""

    name: str
    arguments: str = ""


class RequestFeatures(Struct, frozen=True, kw_only=True):
    """The features of a request that the classifier reads.

    `newest` is the author of the last message, system messages aside. A message with tool results counts as
    `tool`, whatever its role, unless the user wrote text in it too. `calls` are those of the last assistant
    turn.
    """

    newest: NewestRole = "user"
    has_media: bool = False
    """The newest message is the user's and has an image or a video."""
    text: str = ""
    """The start of the user's text in the newest message; start and end if a search tool is declared."""
    calls: tuple[CalledTool, ...] = ()
    offers_search: bool = False
    """A web search tool is declared."""
    asks_search: bool = False
    """The request itself demands a web search: the model must search, not only may."""
    has_tools: bool = False
    has_answer: bool = False
    """The history has an answer of the model."""
    opening: str = ""
    """The start of the system text, or of the first message without one; only for short requests."""


TextStart = str | bytes
"""The start of a text: decoded, or as the first bytes of its JSON string."""

RequestOpenings = tuple[tuple[TextStart, ...], tuple[TextStart, ...]]
"""Starts of the system texts before the first message, and of the texts of the newest user message."""

COMPACTION_TRIGGER = "\0compaction_trigger"
"""Stands for a last item `compaction_trigger` (Codex) among the texts of the newest user message."""


Role = Literal["user", "assistant", "tool", "system"]
ProtocolName = Literal["chat", "responses", "messages", "gemini"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Message(Struct, frozen=True):
    """One message; tool results are parts of `tool` messages or of `user` messages."""

    role: Role
    parts: tuple[Part, ...] = ()
    name: str | None = None
    extras: dict[str, Json] | None = None


class Tool(Struct, frozen=True):
    """A declared tool.

    `function` has a JSON schema in `parameters`; `custom` takes free text (`format` is its grammar);
    `hosted` runs at the provider, and its field `hosted` is the declaration in its own protocol.
    """

    name: str
    kind: Literal["function", "custom", "hosted"] = "function"
    description: str | None = None
    parameters: Json = None
    strict: bool | None = None
    namespace: str | None = None
    namespace_description: str | None = None
    format: Json = None
    hosted: Json = None
    cache: Json = None
    extras: dict[str, Json] | None = None


class ToolChoice(Struct, frozen=True):
    """Whether the model may or must call tools; `names` are the allowed ones (mode `tool`: one)."""

    mode: Literal["auto", "none", "required", "tool"]
    names: tuple[str, ...] = ()

    @property
    def forces(self) -> bool:
        """Whether the model must call a tool."""
        return self.mode in ("required", "tool")


class Output(Struct, frozen=True):
    """Structured output: any JSON object, or one that matches `schema`."""

    kind: Literal["json_object", "json_schema"]
    name: str | None = None
    schema: Json = None
    strict: bool | None = None
    description: str | None = None


class Thinking(Struct, frozen=True):
    """The amount of thinking: by `effort`, by token `budget`, or up to the model (`adaptive`)."""

    enabled: bool = True
    effort: Effort | None = None
    budget: int | None = None
    adaptive: bool = False
    visible: bool = True
    summary: str | None = None


class Request(Struct, frozen=True, kw_only=True):
    """One request for one answer.

    `source` is the client's protocol; `extras` are its top-level fields that have no counterpart here.
    """

    model: str
    messages: tuple[Message, ...]
    source: ProtocolName
    system: tuple[Text, ...] = ()
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    n: int = 1
    logprobs: bool | None = None
    top_logprobs: int | None = None
    output: Output | None = None
    verbosity: str | None = None
    thinking: Thinking | None = None
    metadata: dict[str, Json] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    cache_key: str | None = None
    service_tier: str | None = None
    stream: bool = False
    include_usage: bool = False
    extras: dict[str, Json] | None = None
