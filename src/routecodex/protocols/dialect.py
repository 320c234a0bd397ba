"""How one upstream deviates from the protocol it speaks, as data."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Dialect(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The knobs an encoder turns; the defaults are the protocol as its maker publishes it.

    `unsupported` lists request fields this upstream refuses: they are left out, with a notice.
    `unsigned_thoughts` and `unthought_turns` are as most take them who speak messages, not as Anthropic does.
    """

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    """Absent, chat clients may use either, and the gateway writes `max_completion_tokens`."""
    reasoning_field: Literal["reasoning_effort", "thinking", "enable_thinking", "reasoning", "none"] = (
        "reasoning_effort"
    )
    reasoning_history: Literal["reasoning_content", "reasoning", "reasoning_details", "none"] = "none"
    stream_usage: bool = True
    system_role: Literal["system", "developer"] = "system"
    unsupported: tuple[str, ...] = ()
    parallel_tool_calls: bool = True
    response_format: Literal["json_schema", "json_object", "none"] = "json_schema"
    image_urls: bool = True
    tool_choice: Literal["full", "auto_only", "no_required"] = "full"
    strict_tools: bool = True
    n: bool = True
    merge_system: bool = False
    path: str | None = None
    unsigned_thoughts: bool = True
    unthought_turns: bool = True
    web_search: bool | None = None
    """Whether it runs a search that a client declares; by protocol when absent."""


_SEARCHING = frozenset({"responses", "messages", "gemini"})
"""Protocols whose makers run a declared web search themselves."""


def hosts_search(dialect: Dialect, protocol: str) -> bool:
    """Whether this upstream runs a web search that is declared in its own protocol."""
    return protocol in _SEARCHING if dialect.web_search is None else dialect.web_search
