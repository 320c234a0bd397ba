"""A request in no protocol's shape, and the features routing reads.

What routing looks at in a request: a few features, read without decoding all of it.

What a client asks for, in no protocol's shape.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from routecodex.canon.parts import Json, Part, Text

NewestRole = Literal["user", "assistant", "tool", "system"]


class CalledTool(Struct, frozen=True):
    """A tool that the model called; `arguments` as text, JSON or free, maybe cut off after some 2 KB."""

    name: str
    arguments: str = ""


class RequestFeatures(Struct, frozen=True, kw_only=True):
    """One request as the classifier sees it.

    `newest` is whose message comes last: one that brings results of tools is the tools', whatever its role,
    unless the person wrote something in it too. Messages of the system are looked through. `calls` are those
    of the last assistant turn.
    """

    newest: NewestRole = "user"
    has_media: bool = False
    """An image or a film is in the newest message, and that is the user's."""
    text: str = ""
    """What the person wrote in the newest message: how it begins; both its ends where search is on offer."""
    calls: tuple[CalledTool, ...] = ()
    offers_search: bool = False
    """A tool that searches the web is declared."""
    asks_search: bool = False
    """The request asks for a web search by itself: not only may the model search, it is told to."""
    has_tools: bool = False
    has_answer: bool = False
    """The model has spoken before."""
    opening: str = ""
    """How the system text begins, or the first message where there is none; filled for short requests."""


Role = Literal["user", "assistant", "tool", "system"]
ProtocolName = Literal["chat", "responses", "messages", "gemini"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Message(Struct, frozen=True):
    """One message; tool results stand in `tool` messages, or among the parts of a `user` one."""

    role: Role
    parts: tuple[Part, ...] = ()
    name: str | None = None
    extras: dict[str, Json] | None = None


class Tool(Struct, frozen=True):
    """A tool on offer.

    `function` has a JSON schema in `parameters`; `custom` takes free text (`format` is its grammar);
    `hosted` runs at the provider and is described by `hosted`, the tool as its own protocol wrote it.
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
    """How free the model is in calling tools; `names` are those it must choose from (mode `tool`: one)."""

    mode: Literal["auto", "none", "required", "tool"]
    names: tuple[str, ...] = ()

    @property
    def forces(self) -> bool:
        """Whether some tool must be called."""
        return self.mode in ("required", "tool")


class Output(Struct, frozen=True):
    """Structured output: any JSON object, or one that fits `schema`."""

    kind: Literal["json_object", "json_schema"]
    name: str | None = None
    schema: Json = None
    strict: bool | None = None
    description: str | None = None


class Thinking(Struct, frozen=True):
    """How much the model shall think: by `effort`, by token `budget`, or as it likes (`adaptive`)."""

    enabled: bool = True
    effort: Effort | None = None
    budget: int | None = None
    adaptive: bool = False
    visible: bool = True
    summary: str | None = None


class Request(Struct, frozen=True, kw_only=True):
    """One request for one answer.

    `source` is the protocol it came in; `extras` are top-level fields of that protocol with no home here.
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
