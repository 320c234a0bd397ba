"""Requests shaped like those of the coding agents people run: their fields, headers and sizes."""

from __future__ import annotations

from typing import Any

import msgspec

SESSION = "6f0b3a52-4c1e-4b57-9d11-0a7c52f6b8aa"
CLAUDE_BETA = "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27"
CLAUDE_HEADERS = {
    "user-agent": "claude-cli/2.3.1 (external, cli)",
    "x-app": "cli",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": CLAUDE_BETA,
    "x-claude-code-session-id": SESSION,
    "x-stainless-lang": "js",
    "x-api-key": "any",
}
CLAUDE_TOOLS = (
    *("Bash", "Read", "Edit", "Write", "Glob", "Grep", "Task", "TodoWrite", "WebFetch", "WebSearch"),
    *("NotebookEdit", "KillShell", "BashOutput", "SlashCommand", "ExitPlanMode", "AskUserQuestion"),
    *("Skill", "EnterPlanMode", "TaskOutput", "TaskStop", "LSP", "ListMcpResources", "ReadMcpResource"),
    "mcp__files__search",
)
_MANUAL = "How this tool is used, at length, with every caveat there is. " * 70


def _claude_tool(name: str) -> dict[str, Any]:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "What to do"},
            "timeout": {"type": "number", "description": "Milliseconds"},
        },
        "required": ["command"],
        "additionalProperties": False,
    }
    return {"name": name, "description": f"{name}: {_MANUAL}", "input_schema": schema}


def claude_code(model: str, text: str, **fields: Any) -> dict[str, Any]:
    """Return the first request of a Claude Code session: over 100 KB for one sentence."""
    reminder = "<system-reminder>\nAs you answer, mind the project's notes.\n</system-reminder>\n"
    cached = {"type": "ephemeral"}
    user = {"device_id": "d1", "account_uuid": "", "session_id": SESSION}
    body: dict[str, Any] = {
        "model": model,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": reminder},
                    {"type": "text", "text": text, "cache_control": cached},
                ],
            }
        ],
        "system": [
            {"type": "text", "text": "x-billing-header: cc_version=2.3.1; cc_entrypoint=cli;"},
            {"type": "text", "text": "You are an agent for coding.", "cache_control": cached},
            {"type": "text", "text": "Be brief and exact. " * 200, "cache_control": cached},
        ],
        "tools": [_claude_tool(name) for name in CLAUDE_TOOLS],
        "metadata": {"user_id": msgspec.json.encode(user).decode()},
        "max_tokens": 32000,
        "thinking": {"type": "enabled", "budget_tokens": 31999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "stream": True,
    }
    return body | fields


CODEX_HEADERS = {
    "user-agent": "codex_cli_rs/0.98.0 (Linux 6.8; x86_64)",
    "originator": "codex_cli_rs",
    "session-id": SESSION,
    "thread-id": SESSION,
    "authorization": "Bearer any",
    "accept": "text/event-stream",
}
_COMMAND = {
    "type": "object",
    "properties": {"cmd": {"type": "string"}, "workdir": {"type": "string"}},
    "required": ["cmd"],
    "additionalProperties": False,
}
_PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
CODEX_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "name": "exec_command",
        "description": "Runs a command.",
        "strict": False,
        "parameters": _COMMAND,
    },
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edits files; the input is a patch, not JSON.",
        "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" LF'},
    },
    {
        "type": "namespace",
        "name": "mcp__files",
        "description": "Files on this machine",
        "tools": [
            {"type": "function", "name": "fetch", "description": "Reads a file.", "parameters": _PATH},
            {"type": "function", "name": "erase", "description": "Deletes a file.", "parameters": _PATH},
        ],
    },
    {"type": "web_search", "external_web_access": True},
]


def codex(model: str, text: str, *more: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a request of Codex; `more` are the items that follow the user's text."""
    body: dict[str, Any] = {
        "model": model,
        "instructions": "You are Codex, an agent for coding. " * 100,
        "input": [
            _message("developer", "<permissions>The sandbox is read-only.</permissions>"),
            _message("user", "<environment_context>cwd: /tmp</environment_context>"),
            _message("user", text),
            *more,
        ],
        "tools": CODEX_TOOLS,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": SESSION,
        "text": {"verbosity": "low"},
        "client_metadata": {"x-codex-installation-id": "i1"},
    }
    return body | fields


def _message(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
