"""Requests of a tool loop on each wire: the question, the same with its result, and one without tools."""

from __future__ import annotations

from typing import Any

_SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
_ASK = {"role": "user", "content": "look at the sky"}
_HELLO = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
_ARGUMENTS = '{"at":"the sky"}'

_CHAT_TOOLS = {"tools": [{"type": "function", "function": {"name": "look", "parameters": _SCHEMA}}]}
_CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": _ARGUMENTS}}
_CHAT_RESULT = {"role": "tool", "tool_call_id": "c1", "content": "a blue sky"}

_MESSAGES_TOOLS = {"tools": [{"name": "look", "input_schema": _SCHEMA}]}
_USE = {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "the sky"}}
_RESULT_TEXT = [{"type": "text", "text": "a blue sky"}]
_USED = {"type": "tool_result", "tool_use_id": "c1", "content": _RESULT_TEXT}

_RESPONSES_TOOLS = {"tools": [{"type": "function", "name": "look", "parameters": _SCHEMA}]}
_ITEM = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": _ARGUMENTS}
_OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "a blue sky"}

_GEMINI_TOOLS = {"tools": [{"functionDeclarations": [{"name": "look", "parameters": _SCHEMA}]}]}
_CONTENT = {"role": "user", "parts": [{"text": "look at the sky"}]}
_CALLED = {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {"at": "the sky"}}}]}
_RESPONSE = {"functionResponse": {"name": "look", "response": {"output": "a blue sky"}}}

REQUESTS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "chat": (
        {"messages": [_ASK], **_CHAT_TOOLS},
        {
            "messages": [_ASK, {"role": "assistant", "tool_calls": [_CHAT_CALL]}, _CHAT_RESULT],
            **_CHAT_TOOLS,
        },
        {"messages": [_HELLO]},
    ),
    "messages": (
        {"messages": [_ASK], **_MESSAGES_TOOLS},
        {
            "messages": [
                _ASK,
                {"role": "assistant", "content": [_USE]},
                {"role": "user", "content": [_USED]},
            ],
            **_MESSAGES_TOOLS,
        },
        {"messages": [_HELLO]},
    ),
    "responses": (
        {"input": "look at the sky", **_RESPONSES_TOOLS},
        {"input": [_ASK, _ITEM, _OUTPUT], **_RESPONSES_TOOLS},
        {"input": [_HELLO]},
    ),
    "gemini": (
        {"contents": [_CONTENT], **_GEMINI_TOOLS},
        {"contents": [_CONTENT, _CALLED, {"role": "user", "parts": [_RESPONSE]}], **_GEMINI_TOOLS},
        {"contents": [{"parts": [{"text": "hello"}]}]},
    ),
}
