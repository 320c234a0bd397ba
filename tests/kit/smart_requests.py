"""Requests of a tool loop in each protocol: the first, one with the tool result, one without tools."""

from __future__ import annotations

from typing import Any

_SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
_QUESTION = {"role": "user", "content": "look at the sky"}
_HELLO = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
_ARGUMENTS = '{"at":"the sky"}'

_CHAT_TOOLS = {"tools": [{"type": "function", "function": {"name": "look", "parameters": _SCHEMA}}]}
_CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": _ARGUMENTS}}
_CHAT_RESULT = {"role": "tool", "tool_call_id": "c1", "content": "a blue sky"}

_MESSAGES_TOOLS = {"tools": [{"name": "look", "input_schema": _SCHEMA}]}
_TOOL_USE = {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "the sky"}}
_RESULT_TEXT = [{"type": "text", "text": "a blue sky"}]
_TOOL_RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": _RESULT_TEXT}

_RESPONSES_TOOLS = {"tools": [{"type": "function", "name": "look", "parameters": _SCHEMA}]}
_CALL_ITEM = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": _ARGUMENTS}
_OUTPUT_ITEM = {"type": "function_call_output", "call_id": "c1", "output": "a blue sky"}

_GEMINI_TOOLS = {"tools": [{"functionDeclarations": [{"name": "look", "parameters": _SCHEMA}]}]}
_QUESTION_CONTENT = {"role": "user", "parts": [{"text": "look at the sky"}]}
_CALL_CONTENT = {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {"at": "the sky"}}}]}
_FUNCTION_RESPONSE = {"functionResponse": {"name": "look", "response": {"output": "a blue sky"}}}

REQUESTS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "chat": (
        {"messages": [_QUESTION], **_CHAT_TOOLS},
        {
            "messages": [_QUESTION, {"role": "assistant", "tool_calls": [_CHAT_CALL]}, _CHAT_RESULT],
            **_CHAT_TOOLS,
        },
        {"messages": [_HELLO]},
    ),
    "messages": (
        {"messages": [_QUESTION], **_MESSAGES_TOOLS},
        {
            "messages": [
                _QUESTION,
                {"role": "assistant", "content": [_TOOL_USE]},
                {"role": "user", "content": [_TOOL_RESULT]},
            ],
            **_MESSAGES_TOOLS,
        },
        {"messages": [_HELLO]},
    ),
    "responses": (
        {"input": "look at the sky", **_RESPONSES_TOOLS},
        {"input": [_QUESTION, _CALL_ITEM, _OUTPUT_ITEM], **_RESPONSES_TOOLS},
        {"input": [_HELLO]},
    ),
    "gemini": (
        {"contents": [_QUESTION_CONTENT], **_GEMINI_TOOLS},
        {
            "contents": [_QUESTION_CONTENT, _CALL_CONTENT, {"role": "user", "parts": [_FUNCTION_RESPONSE]}],
            **_GEMINI_TOOLS,
        },
        {"contents": [{"parts": [{"text": "hello"}]}]},
    ),
}
