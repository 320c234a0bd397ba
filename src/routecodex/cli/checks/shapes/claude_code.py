"""Requests of Claude Code 2.1.326 with the switches that `routecodex run` sets.

For a model that it does not know it sends its environment as a message with the role `system`.
"""

from __future__ import annotations

from typing import Any

from routecodex.cli.checks.shapes.shape import (
    FILE,
    FILE_CONTENT,
    READ_PROMPT,
    TEXT_PROMPT,
    AgentShapes,
    AssistantTurn,
    RequestShape,
    ShapeInput,
)
from routecodex.wire import json

_TOOL = "Read"
_CACHED = {"type": "ephemeral"}
_BETAS = (
    "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,"
    "mid-conversation-tool-changes-2026-07-01,thinking-token-count-2026-05-13,effort-2025-11-24"
)
_REMINDER = "<system-reminder>\nThe person works in a folder of notes.\n</system-reminder>\n"
_IDENTITY = "You are a Claude agent, built on Anthropic's Claude Agent SDK."
_MANUAL = "\nYou are an agent that works with the user toward their goals. Use the tools that you are given."
_ENVIRONMENT = "# Environment\n - Primary working directory: /home/user/notes\n - Platform: linux"
_COMPACTION = (
    "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\nYour task is to create a detailed summary "
    "of the conversation so far. Write it inside <summary> tags."
)
_TITLE = (
    "You are naming a coding session so the user can pick it out of a long list. Answer with JSON that has "
    "one field, title."
)
_TITLE_FORMAT = {
    "type": "json_schema",
    "schema": {
        "type": "object",
        "properties": {"title": {"type": "string"}},
        "required": ["title"],
        "additionalProperties": False,
    },
}


def _tool(name: str, description: str, required: tuple[str, ...], /, **properties: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
    }
    if required:
        schema["required"] = list(required)
    return {
        "name": name,
        "description": description,
        "input_schema": schema | {"additionalProperties": False},
    }


def _property(kind: str, description: str, **more: Any) -> dict[str, Any]:
    return {"description": description, "type": kind, **more}


TOOLS: list[dict[str, Any]] = [
    _tool(
        "Agent",
        "Start another agent for a task of several steps.",
        ("description", "prompt"),
        description=_property("string", "The task in a few words"),
        prompt=_property("string", "The task"),
        model=_property("string", "Another model", enum=["sonnet", "opus", "haiku"]),
        run_in_background=_property("boolean", "Go on without waiting"),
    ),
    _tool(
        "Bash",
        "Run a command and return its output.",
        ("command",),
        command=_property("string", "The command"),
        timeout=_property("number", "Timeout in milliseconds"),
    ),
    _tool("CronList", "List the scheduled prompts.", ()),
    _tool(
        "Edit",
        "Replace text in a file.",
        ("file_path", "old_string", "new_string"),
        file_path=_property("string", "The file"),
        old_string=_property("string", "The text to replace"),
        new_string=_property("string", "The new text"),
        replace_all=_property("boolean", "Replace every occurrence", default=False),
    ),
    _tool(
        _TOOL,
        "Read a file.",
        ("file_path",),
        file_path=_property("string", "The file"),
        offset=_property("integer", "The first line", minimum=0, maximum=9007199254740991),
        limit=_property("integer", "The number of lines", exclusiveMinimum=0, maximum=9007199254740991),
    ),
    _tool(
        "WebFetch",
        "Fetch a page and answer a question about it.",
        ("url", "prompt"),
        url=_property("string", "The address", format="uri"),
        prompt=_property("string", "The question"),
    ),
]


def _headers(shape: ShapeInput, request_class: str, *, betas: str = _BETAS, **more: str) -> dict[str, str]:
    return {
        "accept": "application/json",
        "authorization": f"Bearer {shape.key}",
        "content-type": "application/json",
        "user-agent": "claude-cli/2.1.326 (external, sdk-cli)",
        "x-claude-code-session-id": shape.session,
        "x-stainless-arch": "x64",
        "x-stainless-lang": "js",
        "x-stainless-os": "Linux",
        "x-stainless-package-version": "0.128.0",
        "x-stainless-retry-count": "0",
        "x-stainless-runtime": "node",
        "x-stainless-runtime-version": "v26.12.1",
        "anthropic-beta": betas,
        "anthropic-dangerous-direct-browser-access": "true",
        "anthropic-version": "2023-06-01",
        "x-app": "cli",
        "x-claude-code-request-class": request_class,
        **more,
    }


def _metadata(shape: ShapeInput) -> dict[str, str]:
    user = {"device_id": "0" * 64, "account_uuid": "", "session_id": shape.session}
    return {"user_id": json.encode(user).decode()}


def _turn(shape: ShapeInput, prompt: str, *more: dict[str, Any], **headers: str) -> RequestShape:
    request_class = headers.pop("request_class", "main")
    user = [{"type": "text", "text": _REMINDER}, {"type": "text", "text": prompt}]
    names = {"x-stainless-timeout": "600", "x-claude-1p-request-class": "main"}
    if request_class == "main":
        names["x-claude-code-prompt-id"] = shape.turn_id
    return RequestShape(
        path="/v1/messages?beta=true",
        headers=_headers(
            shape, request_class, betas=f"{_BETAS},thinking-display-updates-2026-08-18", **names, **headers
        ),
        body={
            "model": shape.model,
            "messages": [
                {"role": "user", "content": user},
                {
                    "role": "system",
                    "content": [{"type": "text", "text": _ENVIRONMENT, "cache_control": _CACHED}],
                },
                *more,
            ],
            "system": [
                {"type": "text", "text": _IDENTITY, "cache_control": _CACHED},
                {"type": "text", "text": _MANUAL, "cache_control": _CACHED},
            ],
            "tools": TOOLS,
            "metadata": _metadata(shape),
            "max_tokens": 32000,
            "thinking": {"type": "adaptive", "display": "updates"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high"},
            "stream": True,
        },
    )


def _text(shape: ShapeInput) -> RequestShape:
    return _turn(shape, TEXT_PROMPT)


def _tool_call(shape: ShapeInput) -> RequestShape:
    return _turn(shape, READ_PROMPT.format(tool=_TOOL))


def _history(shape: ShapeInput) -> list[dict[str, Any]]:
    turn = shape.turn or recorded()
    return [*turn.items, {"role": "user", "content": [_result(turn)]}]


def _result(turn: AssistantTurn) -> dict[str, Any]:
    return {"tool_use_id": turn.call_id, "type": "tool_result", "content": f"1\t{FILE_CONTENT}\n2\t"}


def _tool_result(shape: ShapeInput) -> RequestShape:
    durations = {"x-claude-code-prev-tool-durations": f"{_TOOL}=11"}
    return _turn(shape, READ_PROMPT.format(tool=_TOOL), *_history(shape), **durations)


def _compaction(shape: ShapeInput) -> RequestShape:
    *before, last = _history(shape)
    last = {**last, "content": [*last["content"], {"type": "text", "text": _COMPACTION}]}
    return _turn(
        shape,
        READ_PROMPT.format(tool=_TOOL),
        *before,
        last,
        request_class="compaction",
        **{"x-claude-code-compaction": "manual"},
    )


def _title(shape: ShapeInput) -> RequestShape:
    asked = f"<session>\nRead {FILE} and say when the festival begins\n</session>\n\nWrite the title."
    names = {"x-stainless-timeout": "600", "x-claude-1p-request-class": "summary-extraction"}
    return RequestShape(
        path="/v1/messages?beta=true",
        headers=_headers(shape, "auxiliary", betas=f"{_BETAS},structured-outputs-2025-12-15", **names),
        body={
            "model": shape.model,
            "messages": [{"role": "user", "content": [{"type": "text", "text": asked}]}],
            "system": [{"type": "text", "text": _IDENTITY}, {"type": "text", "text": _TITLE}],
            "tools": [],
            "metadata": _metadata(shape),
            "max_tokens": 32000,
            "output_config": {"effort": "high", "format": _TITLE_FORMAT},
            "stream": True,
        },
    )


def _count_tokens(shape: ShapeInput) -> RequestShape:
    betas = "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27"
    return RequestShape(
        path="/v1/messages/count_tokens?beta=true",
        headers=_headers(shape, "auxiliary", betas=f"{betas},token-counting-2024-11-01"),
        body={"model": shape.model, "messages": [{"role": "user", "content": "foo"}], "tools": TOOLS},
        stream=False,
    )


def recorded() -> AssistantTurn:
    """Return a turn that calls the tool, without a thinking block."""
    call_id = "toolu_01routecodexdoctor000000"
    call = {"type": "tool_use", "id": call_id, "name": _TOOL, "input": {"file_path": FILE}}
    return AssistantTurn([{"role": "assistant", "content": [call]}], call_id, _TOOL)


SHAPES = AgentShapes(
    protocol="messages",
    shapes={
        "text": _text,
        "tool_call": _tool_call,
        "tool_result": _tool_result,
        "title": _title,
        "compaction": _compaction,
        "count_tokens": _count_tokens,
    },
    tool=_TOOL,
    argument="file_path",
    recorded=recorded,
)
