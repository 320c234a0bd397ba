"""Plugins for conversations.

tool_plugin          `ToolPlugin`: runs the tools a model calls
function_tools       `tool`, `Tool`: tools from functions; schemas come from type hints and docstrings
tool_job             `ToolCall`, `Allow`, `Edit`, `Deny`: approval of a call; `Job`: its execution
call_pairing         keeps every tool call paired with one result
length_continuation  `LengthContinuation`: continues answers that the token limit cut off
thinking_state       `ThinkingState`: whether the model is thinking, and for how long
max_usage            `MaxUsage`, `Price`: limits tokens and cost
persist              `Persist`: saves a conversation in a store
mcp_tools            `McpTools`: the tools of an MCP server
"""
