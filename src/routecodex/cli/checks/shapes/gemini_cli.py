"""Requests of Gemini CLI 0.61.0."""

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

_TOOL = "read_file"
_MANUAL = "You are Gemini CLI, an agent for software engineering. Use the tools that you are given."
_CONTEXT = "<session_context>\nThis is the Gemini CLI. The folder is /home/user/notes.\n</session_context>"
_COMPACTION = (
    "You are a specialized system component responsible for distilling chat history into a structured XML "
    "<state_snapshot>."
)
_COMPACTION_PROMPT = "First, reason in your scratchpad. Then, generate the updated <state_snapshot>."
_CALL_ID = "read_file_1794984078817_0"
_NO_SIGNATURE = "skip_thought_signature_validator"
"""Gemini CLI sends this for a call that came without a signature."""


def _function(name: str, description: str, required: tuple[str, ...], /, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"name": name, "description": description, "parametersJsonSchema": schema}


def _property(kind: str, description: str, **more: Any) -> dict[str, Any]:
    return {"description": description, "type": kind, **more}


FUNCTIONS: list[dict[str, Any]] = [
    _function(
        "list_directory",
        "List a folder.",
        ("dir_path",),
        dir_path=_property("string", "The folder"),
        ignore=_property("array", "Patterns to ignore", items={"type": "string"}),
        file_filtering_options=_property(
            "object", "Filters", properties={"respect_git_ignore": _property("boolean", "Mind .gitignore")}
        ),
    ),
    _function(
        _TOOL,
        "Read a file.",
        ("file_path",),
        file_path=_property("string", "The file"),
        start_line=_property("integer", "The first line", minimum=1),
        end_line=_property("integer", "The last line", minimum=1),
    ),
    _function(
        "run_shell_command",
        "Run a command.",
        ("command",),
        command=_property("string", "The command"),
        is_background=_property("boolean", "Go on without waiting"),
    ),
]


def _headers(shape: ShapeInput) -> dict[str, str]:
    return {
        "user-agent": f"GeminiCLI-tui/0.61.0/{shape.model} (linux; x64; terminal)",
        "x-goog-api-client": "google-genai-sdk/1.30.0 gl-node/v24.19.0",
        "content-type": "application/json",
        "x-goog-api-key": shape.key,
        "x-session-id": shape.session,
        "accept": "*/*",
        "accept-language": "*",
        "sec-fetch-mode": "cors",
    }


def _user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"parts": list(parts), "role": "user"}


def _stream(shape: ShapeInput, *contents: dict[str, Any]) -> RequestShape:
    return RequestShape(
        path=f"/v1beta/models/{shape.model}:streamGenerateContent?alt=sse",
        headers=_headers(shape),
        body={
            "contents": list(contents),
            "systemInstruction": _user({"text": _MANUAL}),
            "tools": [{"functionDeclarations": FUNCTIONS}],
            "generationConfig": {
                "temperature": 1,
                "topP": 0.95,
                "topK": 64,
                "thinkingConfig": {"includeThoughts": True},
            },
        },
    )


def _asked(prompt: str) -> dict[str, Any]:
    return _user({"text": _CONTEXT}, {"text": prompt})


def _text(shape: ShapeInput) -> RequestShape:
    return _stream(shape, _asked(TEXT_PROMPT))


def _tool_call(shape: ShapeInput) -> RequestShape:
    return _stream(shape, _asked(READ_PROMPT.format(tool=_TOOL)))


def _history(shape: ShapeInput) -> list[dict[str, Any]]:
    turn = shape.turn or recorded()
    response: dict[str, Any] = {"name": turn.tool, "response": {"output": f"{FILE_CONTENT}\n"}}
    result = {"functionResponse": {**response, "id": turn.call_id or _CALL_ID}}
    return [_asked(READ_PROMPT.format(tool=_TOOL)), *map(_kept, turn.items), _user(result)]


def _kept(content: dict[str, Any]) -> dict[str, Any]:
    """Return a turn of the model as the agent keeps it: with ids, and with a signature at the first call."""
    parts: list[dict[str, Any]] = []
    for part in content["parts"]:
        if "functionCall" in part:
            first = not any("functionCall" in before for before in parts)
            call = {"id": _CALL_ID, **part["functionCall"]}
            part = {**({"thoughtSignature": _NO_SIGNATURE} if first else {}), **part, "functionCall": call}
        parts.append(part)
    return {"parts": parts, "role": "model"}


def _tool_result(shape: ShapeInput) -> RequestShape:
    return _stream(shape, *_history(shape))


def _compaction(shape: ShapeInput) -> RequestShape:
    return RequestShape(
        path=f"/v1beta/models/{shape.model}:generateContent",
        headers=_headers(shape),
        body={
            "contents": [*_history(shape), _user({"text": _COMPACTION_PROMPT})],
            "systemInstruction": _user({"text": _COMPACTION}),
            "generationConfig": {"temperature": 0, "topP": 1},
        },
        stream=False,
    )


def _count_tokens(shape: ShapeInput) -> RequestShape:
    return RequestShape(
        path=f"/v1beta/models/{shape.model}:countTokens",
        headers=_headers(shape),
        body={"contents": [_asked(TEXT_PROMPT)]},
        stream=False,
    )


def recorded() -> AssistantTurn:
    """Return a turn that calls the tool, without a signature."""
    call = {"functionCall": {"name": _TOOL, "args": {"file_path": FILE}}}
    return AssistantTurn([{"parts": [call], "role": "model"}], _CALL_ID, _TOOL)


SHAPES = AgentShapes(
    protocol="gemini",
    shapes={
        "text": _text,
        "tool_call": _tool_call,
        "tool_result": _tool_result,
        "compaction": _compaction,
        "count_tokens": _count_tokens,
    },
    tool=_TOOL,
    argument="file_path",
    recorded=recorded,
)
