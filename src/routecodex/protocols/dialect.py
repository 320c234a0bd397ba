"""Deviations of one upstream from its protocol, as data."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

from msgspec import Struct, field

ReasoningField: TypeAlias = Literal[
    "reasoning_effort",
    "thinking",
    "thinking_and_effort",
    "three_efforts",
    "enable_thinking",
    "reasoning",
    "none",
]


class Dialect(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of an encoder; the defaults are the protocol as its owner documents it.

    `unsupported` lists request fields that this upstream rejects: they are dropped, with a notice.
    `unsigned_thoughts` and `unthought_turns` default to the behaviour of compatible messages endpoints;
    Anthropic rejects both (Anthropic docs, extended thinking).
    """

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    """None: chat clients may use either, and the gateway writes `max_completion_tokens`."""
    reasoning_field: ReasoningField = "reasoning_effort"
    """`thinking_and_effort`: `thinking` is the switch, and `reasoning_effort` beside it the depth.
    `three_efforts`: the model always thinks, with the `reasoning_effort` low, high or max."""
    reasoning_models: dict[str, ReasoningField] = field(default_factory=dict)
    """The reasoning field of models that differ, by a glob of their names; the first that matches counts."""
    reasoning_history: Literal["reasoning_content", "reasoning", "reasoning_details", "none"] = "none"
    stream_usage: bool = True
    system_role: Literal["system", "developer"] = "system"
    unsupported: tuple[str, ...] = ()
    parallel_tool_calls: bool = True
    response_format: Literal["json_schema", "json_object", "none"] = "json_schema"
    image_urls: bool = True
    tool_choice: Literal["full", "auto_only", "no_required"] = "full"
    strict_tools: bool = True
    composed_schemas: bool = True
    """Whether tool schemas may have anyOf, oneOf or allOf at their root."""
    n: bool = True
    merge_system: bool = False
    path: str | None = None
    unsigned_thoughts: bool = True
    unthought_turns: bool = True
    web_search: bool | None = None
    """Whether the upstream runs a hosted web search; None: depends on the protocol."""


def reasoning_field_of(dialect: Dialect, model: str) -> ReasoningField:
    """Return the field with which this model of the upstream takes thinking."""
    matching = (name for glob, name in dialect.reasoning_models.items() if fnmatchcase(model.lower(), glob))
    return next(matching, dialect.reasoning_field)


_HOSTING_PROTOCOLS = frozenset({"responses", "messages", "gemini"})
"""Protocols whose owners run a hosted web search: OpenAI, Anthropic, Google."""


def hosts_search(dialect: Dialect, protocol: str) -> bool:
    """Whether this upstream runs a hosted web search of its own protocol."""
    return protocol in _HOSTING_PROTOCOLS if dialect.web_search is None else dialect.web_search
