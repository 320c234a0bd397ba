"""Plugins for conversations.

tool_plugin          `ToolPlugin`: runs the tools a model calls
function_tools       `tool`, `Tool`: tools from functions, their schema from type hints and docstring
approval             `ToolCall`, `Allow`, `Edit`, `Deny`: calls before they are made
job                  one call and the tool's own work on it
pairing              calls and results in pairs, whatever happened
length_continuation  `LengthContinuation`: an answer cut off by the token limit goes on
thinking_state       `ThinkingState`: whether the model is thinking, and for how long
max_usage            `MaxUsage`, `Price`: no more requests once the tokens or the money are spent
persist              `Persist`: a conversation in a store, so that it survives the process
mcp_tools            `McpTools`: the tools of an MCP server
docstrings, threads  what a docstring says of parameters; blocking calls beside the loop
"""
