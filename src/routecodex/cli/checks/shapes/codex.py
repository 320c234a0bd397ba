"""Requests of Codex 0.169.0 over HTTP, with a model that its catalogue describes with `apply_patch`."""

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

_TOOL = "exec_command"
_COMMAND = f"cat {FILE}"
_PROMPT = READ_PROMPT.format(tool=_TOOL) + f' The command is "{_COMMAND}".'
_INSTALLATION = "00000000-0000-4000-8000-000000000000"
_MANUAL = "You are a coding agent running in the Codex CLI. Use the tools that you are given."
_PERMISSIONS = "<permissions instructions>\nThe sandbox is read-only.\n</permissions instructions>"
_ENVIRONMENT = (
    "<environment_context>\n  <cwd>/home/user/notes</cwd>\n  <shell>bash</shell>\n</environment_context>"
)
_COMPACTION = (
    "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM that will "
    "resume the task."
)
_SUMMARY = (
    "Another language model started to solve this problem and produced a summary of its thinking process. "
    "Here is the summary produced by the other language model:\n"
)


def _function(name: str, description: str, required: tuple[str, ...], /, **properties: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": description,
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": list(required),
            "additionalProperties": False,
        },
    }


def _property(kind: str, description: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "description": description, **more}


TOOLS: list[dict[str, Any]] = [
    _function(
        _TOOL,
        "Run a command in a PTY and return its output.",
        ("cmd",),
        cmd=_property("string", "The command."),
        prefix_rule=_property("array", "Prefix of commands to approve.", items={"type": "string"}),
        sandbox_permissions=_property("string", "Sandbox.", enum=["use_default", "require_escalated"]),
        yield_time_ms=_property("number", "Time to wait for output."),
    ),
    _function(
        "write_stdin",
        "Write to a running command.",
        ("session_id",),
        chars=_property("string", "The characters."),
        session_id=_property("number", "The running command."),
    ),
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edit files. The input is a patch, not JSON.",
        "format": {
            "type": "grammar",
            "syntax": "lark",
            "definition": 'start: "*** Begin Patch" LF line+ "*** End Patch" LF?\nline: /(.+)/ LF\n\n'
            "%import common.LF\n",
        },
    },
    {
        "type": "namespace",
        "name": "multi_agent_v1",
        "description": "Tools for sub-agents.",
        "tools": [
            _function("close_agent", "Close an agent.", ("target",), target=_property("string", "Agent id.")),
        ],
    },
    {"type": "web_search", "external_web_access": False},
]


def _message(role: str, *texts: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text} for text in texts]
    return {"type": "message", "role": role, "content": content}


def _opening(prompt: str) -> list[dict[str, Any]]:
    messages = (
        _message("developer", _MANUAL),
        _message("developer", _PERMISSIONS),
        _message("user", _ENVIRONMENT),
        _message("user", prompt),
    )
    return [{**message, "id": f"msg_doctor{number}"} for number, message in enumerate(messages)]


def _turn_metadata(shape: ShapeInput, kind: str) -> str:
    fields = {
        "installation_id": _INSTALLATION,
        "session_id": shape.session,
        "thread_id": shape.session,
        "turn_id": shape.turn_id,
        "window_id": f"{shape.session}:0",
        "request_kind": kind,
        "thread_source": "user",
        "sandbox": "none",
    }
    return json.encode(fields).decode()


def _request(
    shape: ShapeInput, items: list[dict[str, Any]], *, kind: str = "turn", tools: bool = True
) -> RequestShape:
    metadata = _turn_metadata(shape, kind)
    return RequestShape(
        path="/v1/responses",
        headers={
            "x-codex-beta-features": "remote_compaction_v2",
            "x-codex-window-id": f"{shape.session}:0",
            "x-codex-turn-metadata": metadata,
            "x-client-request-id": shape.session,
            "session-id": shape.session,
            "thread-id": shape.session,
            "accept": "text/event-stream",
            "content-type": "application/json",
            "authorization": f"Bearer {shape.key}",
            "originator": "codex_exec",
            "user-agent": "codex_exec/0.169.0 (Linux; x86_64) xterm-256color (codex_exec; 0.169.0)",
        },
        body={
            "model": shape.model,
            "stream": True,
            "input": items,
            "tools": TOOLS if tools else [],
            "tool_choice": "auto",
            "parallel_tool_calls": tools,
            "reasoning": {"summary": "auto"},
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": shape.session,
            "client_metadata": {
                "turn_id": shape.turn_id,
                "root_turn_id": shape.turn_id,
                "x-codex-turn-metadata": metadata,
                "x-codex-installation-id": _INSTALLATION,
                "session_id": shape.session,
                "thread_id": shape.session,
                "x-codex-window-id": f"{shape.session}:0",
            },
        },
    )


def _text(shape: ShapeInput) -> RequestShape:
    return _request(shape, _opening(TEXT_PROMPT))


def _tool_call(shape: ShapeInput) -> RequestShape:
    return _request(shape, _opening(_PROMPT))


def _history(shape: ShapeInput) -> list[dict[str, Any]]:
    turn = shape.turn or recorded()
    output = (
        f"Chunk ID: fefd38\nWall time: 0.0 seconds\nProcess exited with code 0\nOutput:\n{FILE_CONTENT}\n"
    )
    result = {"type": "function_call_output", "id": "fco_doctor", "call_id": turn.call_id, "output": output}
    return [*_opening(_PROMPT), *turn.items, result]


def _tool_result(shape: ShapeInput) -> RequestShape:
    return _request(shape, _history(shape))


def _compaction(shape: ShapeInput) -> RequestShape:
    items = [*_history(shape), _message("user", _COMPACTION)]
    return _request(shape, items, kind="compaction", tools=False)


def _after_compaction(shape: ShapeInput) -> RequestShape:
    summary = {**_message("user", _SUMMARY + shape.summary), "id": "msg_doctor_summary"}
    return _request(shape, [*_opening(_PROMPT), summary])


def recorded() -> AssistantTurn:
    """Return a turn that calls the tool, without a reasoning item."""
    call = {
        "type": "function_call",
        "id": "fc_doctor",
        "status": "completed",
        "name": _TOOL,
        "arguments": json.encode({"cmd": _COMMAND}).decode(),
        "call_id": "call_doctor",
    }
    return AssistantTurn([call], "call_doctor", _TOOL)


SHAPES = AgentShapes(
    protocol="responses",
    shapes={
        "text": _text,
        "tool_call": _tool_call,
        "tool_result": _tool_result,
        "compaction": _compaction,
    },
    tool=_TOOL,
    argument="cmd",
    recorded=recorded,
    after={"compaction": _after_compaction},
    length_fails=True,
)
